"""auto_fp16 and force_fp32: which arguments they cast, where functions are cast, nested decorators and sessions."""

import collections
import copy

import pytest
import torch
from helpers.precision import HIGH, LOW
from helpers.threads import in_threads
from mmcv_loops import ReturnsDtypes

import ampcompat
from ampcompat import amp
from ampcompat.mmcv import auto_fp16, force_fp32, wrap_fp16_model

WIDE = torch.eye(2, dtype=HIGH)
NARROW = torch.eye(2, dtype=LOW)
Point = collections.namedtuple("Point", "x y")


class Probe(torch.nn.Module):
    """Methods under the decorators in all their forms."""

    def __init__(self, enabled=True):
        super().__init__()
        self.fp16_enabled = enabled

    @auto_fp16(apply_to=("img",))
    def some(self, img, boxes, flag=True):
        return img, boxes, flag

    @auto_fp16(apply_to="img")
    def one_name(self, i, img):
        return i, img

    @auto_fp16(out_fp32=True)
    def wide_output(self, x):
        return {"x": x, "count": 3, "product": [torch.mm(x, x)]}

    @force_fp32()
    def loss(self, score, *more, target=None):
        return [torch.mm(score, score), more, target]

    @force_fp32(apply_to=("score",), out_fp16=True)
    def narrow_output(self, score, other):
        return score.exp(), other

    @auto_fp16()
    def outer(self, x):
        return torch.mm(x, x), self.loss(x)[0], self.inner(x), torch.mm(x, x)

    @force_fp32()
    def inner(self, x):
        return self.wide_output(x)["x"], self.product(x)

    @auto_fp16()
    def product(self, x):
        return torch.mm(WIDE, WIDE)


def dtypes_of(*tensors):
    return [tensor.dtype for tensor in tensors]


def test_only_the_named_arguments_are_cast_by_position_and_by_keyword():
    probe = Probe()
    assert dtypes_of(*probe.some(WIDE, WIDE)[:2]) == [LOW, HIGH]
    assert dtypes_of(*probe.some(boxes=WIDE, img=WIDE)[:2]) == [LOW, HIGH]
    assert probe.some(WIDE, WIDE, flag="kept")[2] == "kept"
    assert dtypes_of(*probe.one_name(WIDE, WIDE)) == [HIGH, LOW]


def test_without_names_all_arguments_are_cast_those_without_a_name_too():
    model = ReturnsDtypes(HIGH)
    x, others, named, product = model(WIDE, WIDE, 3, extra=WIDE)
    assert dtypes_of(x, others[0], named["extra"]) == [LOW, LOW, LOW] and others[1] == 3 and product is LOW


def test_containers_keep_their_types_and_other_values_are_not_cast():
    integers, flags = torch.arange(3), torch.tensor([True])
    given = Point([WIDE, integers], {"a": (WIDE, "text"), "b": NARROW, "c": flags})
    x, y = ReturnsDtypes(HIGH)(WIDE, given)[1][0]
    assert dtypes_of(x[0], y["a"][0], y["b"]) == [LOW, LOW, LOW]
    assert x[1] is integers and y["c"] is flags and y["b"] is NARROW and y["a"][1] == "text"
    assert type(ReturnsDtypes(HIGH)(WIDE, given)[1][0]) is Point


@pytest.mark.skipif(HIGH is torch.float64, reason="here float64 stands in for float32")
def test_float64_is_not_cast():
    double = WIDE.double()
    assert Probe().some(double, double)[0] is double


def test_outputs_are_cast_back_on_request():
    output = Probe().wide_output(WIDE)
    assert output["x"].dtype is HIGH and output["product"][0].dtype is HIGH and output["count"] == 3
    score, other = Probe().narrow_output(NARROW, NARROW)
    assert score.dtype is LOW and other is NARROW


def test_force_fp32_casts_arguments_to_float32_and_functions_are_not_cast():
    product, more, target = Probe().loss(NARROW, NARROW, target=NARROW)
    assert dtypes_of(product, more[0], target) == [HIGH, HIGH, HIGH]


def test_innermost_decorator_counts():
    first, forced, (widened, product), last = Probe().outer(WIDE)
    assert dtypes_of(first, forced, widened, product, last) == [LOW, HIGH, HIGH, LOW, LOW]


def test_functions_are_cast_within_a_decorated_method_only(backend):
    with ampcompat.session(backend=backend, verbosity=0):
        assert ReturnsDtypes(HIGH)(WIDE)[3] is LOW
        assert torch.mm(WIDE, WIDE).dtype is HIGH
        assert ampcompat.current().choice.name == backend


def test_without_the_flag_nothing_is_cast_and_no_session_opens():
    model = ReturnsDtypes(HIGH, enabled=False)
    assert model(WIDE)[0] is WIDE
    del model.fp16_enabled
    assert model(WIDE)[3] is HIGH
    assert Probe(enabled=False).loss(NARROW, NARROW)[1][0] is NARROW
    assert ampcompat.current() is None


@pytest.mark.parametrize("decorator", (auto_fp16, force_fp32))
def test_decorating_what_is_no_method_of_a_module_is_an_error_at_the_call(decorator):
    @decorator()
    def function(x):
        return x

    for arguments in ((), (WIDE,), (3,)):
        with pytest.raises(TypeError, match=decorator.__name__ + ".*Module.*function"):
            function(*arguments)


def test_other_classes_may_be_supported():
    class Plain:
        fp16_enabled = True

        @auto_fp16(supported_types=(torch.nn.Module, list))
        def method(self, x):
            return x

    with pytest.raises(TypeError, match="Module and list"):
        Plain().method(WIDE)
    Plain.method = auto_fp16(supported_types=Plain)(lambda self, x: x)
    assert Plain().method(WIDE).dtype is LOW


def test_wrong_names_and_types_are_errors():
    with pytest.raises(TypeError, match="names of arguments"):
        auto_fp16(apply_to=(1,))(lambda self, x: x)
    with pytest.raises(TypeError, match="classes"):
        auto_fp16(supported_types=(3,))(lambda self, x: x)


def test_decorated_method_keeps_its_name_and_docstring():
    assert ReturnsDtypes.forward.__name__ == "forward" and "dtype of a product" in ReturnsDtypes.forward.__doc__


def test_a_copy_of_a_model_and_other_threads_compute_alike():
    model = copy.deepcopy(ReturnsDtypes(HIGH))
    seen = []
    assert in_threads(lambda: seen.append(model(WIDE)[3]), 4) == []
    assert seen == [LOW] * 4 and torch.mm(WIDE, WIDE).dtype is HIGH


def test_gradients_are_those_of_the_rounded_weights():
    model = ReturnsDtypes(HIGH)
    weight = torch.tensor([[1.0 + 2.0**-30, 2.0], [3.0, 4.0]], dtype=HIGH)
    x = torch.ones(1, 2, dtype=HIGH, requires_grad=True)

    class Net(torch.nn.Module):
        fp16_enabled = True

        @auto_fp16(out_fp32=True)
        def forward(self, x):
            return torch.mm(x, model.weight)

    with torch.no_grad():
        model.weight.copy_(weight)
    Net()(x).sum().backward()
    assert torch.equal(x.grad, weight.to(LOW).to(HIGH).sum(1).unsqueeze(0))
    assert torch.equal(model.weight.grad, torch.ones(2, 2, dtype=HIGH))


def test_wrapping_sets_the_flag_where_there_is_one():
    model = torch.nn.Sequential(ReturnsDtypes(enabled=False), torch.nn.Linear(1, 1))
    wrap_fp16_model(model)
    assert model[0].fp16_enabled is True
    assert not hasattr(model[1], "fp16_enabled") and not hasattr(model, "fp16_enabled")
    assert model[0].weight.dtype is torch.float32
    with pytest.raises(TypeError, match="wrap_fp16_model expected a torch.nn.Module, not dict"):
        wrap_fp16_model({})


# -- with amp.initialize -----------------------------------------------------------------------------------------------


def test_nothing_is_cast_at_o0_nor_where_amp_is_disabled():
    with ampcompat.session("O0", verbosity=0):
        assert ReturnsDtypes(torch.float32)(torch.eye(2))[3] is torch.float32
    amp.initialize(torch.nn.Linear(1, 1), enabled=False)
    x = torch.eye(2)
    assert ReturnsDtypes(torch.float32)(x)[0] is x


def test_casts_of_initialize_remain_process_wide():
    amp.initialize(torch.nn.Linear(1, 1), opt_level="O1", verbosity=0)
    assert ReturnsDtypes(HIGH)(WIDE)[3] is LOW and torch.mm(WIDE, WIDE).dtype is LOW
    assert Probe().loss(NARROW)[0].dtype is HIGH


def test_model_that_initialize_cast_gets_half_arguments():
    model = ReturnsDtypes(torch.float32)
    amp.initialize(model, opt_level="O2", verbosity=0)
    assert model.weight.dtype is LOW
    assert ReturnsDtypes.forward(model, WIDE)[3] is LOW


def test_after_reset_the_next_call_opens_a_new_session():
    model = ReturnsDtypes(HIGH)
    assert model(WIDE)[3] is LOW
    ampcompat.reset()
    assert ampcompat.current() is None and torch.mm(WIDE, WIDE).dtype is HIGH
    assert model(WIDE)[3] is LOW
