"""Models whose weights are half, on a CPU that emulates it: products are computed wide, within the model only."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from helpers import loops
from helpers.precision import HIGH, LOW, PAIR

import ampcompat
from ampcompat import amp
from ampcompat.engine.casting import emulated_half_arithmetic, emulated_half_models, torch_compile
from ampcompat.support.torch_compat import features

if not features.has_function_modes():
    pytest.skip("this torch has no torch function modes", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("compiler_forgets")

LEVELS = ["O2", "O3"]
each_level = pytest.mark.parametrize("level", LEVELS)
needs_compiler = pytest.mark.skipif(
    not hasattr(torch, "compiler"),
    reason="this torch has no torch.compile, or that of 2.0, which does not tell that it traces",
)


class Recorder(torch.overrides.TorchFunctionMode):
    """Entered outside of the mode under test, it records each function with the actual arguments."""

    def __init__(self):
        super().__init__()
        self.dtypes = {}

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if args and isinstance(args[0], torch.Tensor):
            self.dtypes.setdefault(name, set()).add(args[0].dtype)
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def half_math_is_on(monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, "on")


@pytest.fixture
def prepared():
    """Return a function: (model, level) -> (model, optimizer), initialized."""
    with contextlib.ExitStack() as stack:

        def prepare(model, level):
            if ampcompat.current() is None:
                stack.enter_context(ampcompat.session(level, dtypes=PAIR, verbosity=0))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return amp.initialize(model, optimizer, verbosity=0)

        yield prepare


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
        self.attention = torch.nn.MultiheadAttention(4, 2, dropout=0.0, batch_first=True)

    def forward(self, x):
        x = self.block(x)
        return self.attention(x, x, x, need_weights=False)[0]


def trained(model, optimizer, batch):
    loss = model(batch).pow(2).mean()
    loops.backward(loss, optimizer)
    return loss.detach(), [parameter.grad.clone() for parameter in amp.master_params(optimizer)]


@each_level
def test_products_within_the_model_are_wide_and_the_rest_is_low(prepared, level):
    model, _ = prepared(Net(), level)
    x = torch.ones(2, 2, dtype=LOW)
    with Recorder() as seen:
        model(torch.randn(2, 3, 6))
        assert (x @ x).dtype is LOW
    assert seen.dtypes["linear"] == {HIGH}
    attention = [seen.dtypes.get(name, set()) for name in ("scaled_dot_product_attention", "bmm", "baddbmm")]
    assert set().union(*attention) == {HIGH}  # one function or two, depending on the torch
    assert seen.dtypes["relu"] == seen.dtypes["matmul"] == {LOW}


@each_level
def test_off_means_that_torch_computes(prepared, level, monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, "off")
    model, _ = prepared(torch.nn.Linear(3, 3), level)
    with Recorder() as seen:
        model(torch.ones(2, 3))
    assert seen.dtypes["linear"] == {LOW}


@each_level
def test_what_a_checkpointed_block_saves_is_its_input_alone(prepared, level):
    if not features.has_nested_saved_tensor_hooks():
        pytest.skip("this torch cannot tell autograd what to keep")
    model, _ = prepared(Net(), level)
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each)
    x = torch.randn(2, 3, 6, dtype=LOW, requires_grad=True)
    with hooks, emulated_half_models.HalfMode(PAIR):
        result = torch.utils.checkpoint.checkpoint(model.block, x, use_reentrant=False)
    assert [tensor.shape for tensor in kept if tensor.numel()] == [x.shape]  # and an empty one, in torch 2.8
    result.sum().backward()
    assert x.grad.dtype is LOW and x.grad.abs().sum() > 0


def test_a_loss_without_a_half_kernel_is_computed_wide_also_when_casts_of_o1_have_come_and_gone():
    class Margin(torch.nn.Linear):
        def forward(self, x):
            return F.multi_margin_loss(super().forward(x), torch.arange(16) % 8)

    with ampcompat.session(dtypes=PAIR, verbosity=0):
        amp.initialize(torch.nn.Linear(2, 2), opt_level="O1", verbosity=0)
        model = amp.initialize(Margin(8, 8), opt_level="O2", verbosity=0)
        amp._amp_state.handle._deactivate()
        assert torch.isfinite(model(torch.randn(16, 8)))


@each_level
def test_a_wide_tensor_made_inside_is_multiplied_in_half_and_stays_wide(prepared, level):
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x.to(HIGH))

    model, _ = prepared(Mixed(), level)
    with Recorder() as seen:
        output = model(torch.ones(2, 3))
    assert seen.dtypes["linear"] == {HIGH}
    assert torch.equal(output, output.to(LOW).to(HIGH))


@needs_compiler
def test_compiled_code_can_tell_that_it_is_compiled():
    def told(x):
        return x + (1 if torch_compile.is_compiling() else 0) + (2 if torch_compile.is_tracing() else 0)

    assert torch.compile(told, backend="eager")(torch.zeros(1)) == 3
    assert told(torch.zeros(1)) == 0


class Part(torch.nn.Module):
    """A layer that is called by itself and compiled."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.compiled = [torch.compile(self.inner, backend="eager")]

    def forward(self, x):
        return self.inner(self.compiled[0](x))


class Break(torch.nn.Module):
    """Python calls the layers after the end of a graph, and the compiler compiles what these call."""

    def forward(self, x):
        torch._dynamo.graph_break()
        return x.tanh()


@needs_compiler
@pytest.mark.filterwarnings("ignore:Dynamo d:UserWarning")  # what it cannot trace of a wrapper that Python calls
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # which the compiler reads of any argument
@pytest.mark.parametrize("middle", [Part, torch.nn.Tanh, Break])
@pytest.mark.parametrize("level", ["O1", *LEVELS])
def test_a_model_that_is_compiled_or_has_a_compiled_part_trains(prepared, level, middle):
    layers = torch.nn.Sequential(torch.nn.Linear(3, 3), middle(), torch.nn.Linear(3, 3))
    model, optimizer = prepared(layers, level)
    called = model if middle is Part else torch.compile(model, backend="eager")
    _, gradients = trained(called, optimizer, torch.randn(2, 3))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit")  # tracing is deprecated, and still used
@each_level
def test_a_traced_model_knows_nothing_of_us(prepared, level):
    model, _ = prepared(torch.nn.Linear(3, 3), level)
    with torch.no_grad():
        traced = torch.jit.trace(model.forward, torch.ones(2, 3), check_trace=False)
    assert "aten::linear" in str(traced.graph)
    assert str(traced.graph).count("aten::to") <= 2  # of the input and of the output


def test_a_model_on_another_device_gets_no_mode():
    assert emulated_half_models.choose(PAIR, [torch.nn.Linear(2, 2).to("meta")]) is None
    assert emulated_half_models.choose(PAIR, [torch.nn.Linear(2, 2)]) is not None


@each_level
def test_an_initialize_that_fails_leaves_no_mode_to_regions(prepared, level, monkeypatch):
    with monkeypatch.context() as context, pytest.raises(ZeroDivisionError):
        context.setattr("ampcompat.engine.session.initialize.OptimizerRecord", lambda *args: 1 / 0)
        prepared(torch.nn.Linear(2, 2), level)
    with ampcompat.current().process_casts.region():
        assert not emulated_half_models.is_active()


def test_explicit_results_and_their_dtypes_are_left_to_torch():
    x, into = torch.ones(2, 2, dtype=LOW), torch.zeros(2, 2, dtype=LOW)
    with Recorder() as seen, emulated_half_models.HalfMode(PAIR):
        torch.mm(x, x, out=into)
    assert seen.dtypes["mm"] == {LOW}
    assert torch.equal(into, torch.full((2, 2), 2.0, dtype=LOW))
