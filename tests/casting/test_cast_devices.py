"""Functions are cast on the devices where the initialized models live, and nowhere else.

Devices that need no hardware stand in: "meta", and fake tensors on "cuda", which reach CUDA's autocast on any build.
"""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from helpers.fake_devices import FakeTensorMode, why_no_fakes
from helpers.precision import HIGH, LOW, PAIR
from opened import each_setting, opened

import ampcompat
from ampcompat import amp
from ampcompat.errors import AmpNotImplementedError
from ampcompat.support.torch_compat import features

needs_fake = pytest.mark.skipif(why_no_fakes("cuda") is not None, reason=str(why_no_fakes("cuda")))


def has_meta_kernels():
    """Return whether this torch computes shapes and dtypes on the device "meta" (1.9, more or less)."""
    try:
        x = torch.empty(2, 2, device="meta")
        return (torch.mm(x, x) + x.exp()).device.type == "meta"
    except (RuntimeError, NotImplementedError):
        return False


needs_meta = pytest.mark.skipif(not has_meta_kernels(), reason="this torch does not compute on meta")


def conv(x):
    return F.conv2d(x.reshape(1, 1, 3, 4), x.reshape(1, 1, 3, 4))


def write_exp(x):
    return x.clone().exp_()


def add_wider(x):
    y = x.clone()
    y += x.double()
    return y


#: One call per rule and more; each takes a floating tensor of shape (3, 4).
CALLS = {
    "mm": lambda x: torch.mm(x, x.t()),
    "matmul operator": lambda x: x @ x.t(),
    "conv2d": conv,
    "exp": torch.exp,
    "mse_loss": lambda x: F.mse_loss(x, x + 1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "prod": torch.prod,
    "promote": lambda x: x + x.double(),
    "sequence": lambda x: torch.cat([x, x]),
    "in place": write_exp,
    "follows self": add_wider,
    "sum of one number": lambda x: torch.exp(x.max()),
}


def outcomes(x):
    """Return {name: dtype of what the call returns, or the kind of error that it raises}."""
    found = {}
    for name, call in CALLS.items():
        try:
            found[name] = call(x).dtype
        except RuntimeError as error:  # torch has no such kernel for halves, or not any more
            found[name] = type(error)
    return found


def tensor_on(device, dtype):
    """Return an input of the calls and the context in which it may be used."""
    if device == "cuda":
        mode = FakeTensorMode()
        with mode:
            return torch.empty(3, 4, dtype=dtype, device="cuda"), mode
    x = torch.linspace(0.1, 0.9, 12, dtype=torch.float64).reshape(3, 4).to(dtype)
    return x.to(device), contextlib.nullcontext()


#: (cast on, called on): both directions, by the two devices that need no hardware.
OTHERS = [pytest.param("cpu", "meta", marks=needs_meta), ("meta", "cpu"), pytest.param("cpu", "cuda", marks=needs_fake)]
OTHERS += [pytest.param("cuda", "cpu", marks=needs_fake)]


@each_setting
@pytest.mark.parametrize("device, called_on", OTHERS)
def test_tensors_on_other_devices_are_left_alone(setting, device, called_on):
    for dtype in {setting.low, setting.high, torch.float64}:
        x, context = tensor_on(called_on, dtype)
        with context:
            before = outcomes(x)
            with opened(setting) as backend:
                backend.set_devices([device])
                assert outcomes(x) == before


@each_setting
def test_values_of_metrics_on_the_cpu_are_exact_while_models_are_elsewhere(setting):
    x = torch.rand(3, 4, dtype=torch.float64)
    product, layer = torch.mm(x, x.t()), torch.nn.LSTM(4, 2).double()
    states = layer(x.reshape(3, 1, 4))[0]
    with opened(setting) as backend:
        backend.set_devices(["cuda"])
        assert torch.equal(torch.mm(x, x.t()), product)
        assert torch.equal(layer(x.reshape(3, 1, 4))[0], states)
        with pytest.raises((RuntimeError, ValueError)):  # torch's own, on the dtypes: the layer is not cast
            layer(x.reshape(3, 1, 4).to(setting.low))
        try:
            F.binary_cross_entropy(x.to(setting.low), x.to(setting.low))
        except RuntimeError as error:  # torch has no kernel for halves; but never our refusal
            assert not isinstance(error, AmpNotImplementedError)


def has_fake_conv(dtype):
    """Return whether a convolution takes fake CUDA tensors; torch 2.5 for CUDA asks the driver if it is bfloat16."""
    try:
        conv(torch.empty(3, 4, dtype=dtype, device="cuda"))
    except RuntimeError:
        return False
    return True


@needs_fake
@each_setting
def test_tensors_where_the_models_are_follow_the_table(setting):
    mode = FakeTensorMode()
    with mode:
        takes_conv = has_fake_conv(setting.low)
    with opened(setting) as backend:
        backend.set_devices(["cuda"])
        with mode:
            wide, narrow = (torch.empty(3, 4, dtype=dtype, device="cuda") for dtype in (setting.high, setting.low))
            assert torch.mm(wide, wide.t()).dtype is F.linear(wide, wide).dtype is setting.low
            assert not takes_conv or conv(wide).dtype is setting.low
            assert (
                torch.exp(narrow).dtype is F.mse_loss(narrow, narrow).dtype is torch.prod(narrow).dtype is setting.high
            )
            assert (narrow + wide).dtype is torch.cat([narrow, wide]).dtype is setting.high


@needs_fake
@each_setting
def test_tensor_with_dimensions_decides_beside_a_scalar_of_the_cpu(setting):
    mode, scalar = FakeTensorMode(allow_non_fake_inputs=True), torch.ones((), dtype=setting.high)
    with opened(setting) as backend, mode:
        narrow = torch.empty(3, dtype=setting.low, device="cuda")
        backend.set_devices(["cuda"])
        assert torch.atan2(narrow, scalar).dtype is torch.atan2(scalar, narrow).dtype is setting.high
        backend.set_devices(["cpu"])
        assert torch.atan2(narrow, scalar).dtype is torch.atan2(scalar, narrow).dtype is setting.low


@needs_meta
@each_setting
def test_all_devices_are_cast_until_some_are_named(setting):
    with opened(setting, devices=None) as backend:
        for device in ("cpu", "meta"):
            assert F.linear(*[torch.ones(2, 2, dtype=setting.high, device=device)] * 2).dtype is setting.low
        backend.set_devices(["meta"])
        backend.set_devices(None)
        assert F.linear(*[torch.ones(2, 2, dtype=setting.high)] * 2).dtype is setting.low


@each_setting
def test_devices_that_change_within_a_pause_hold_after_it(setting):
    x = torch.ones(2, 2, dtype=setting.high)
    with opened(setting) as backend:
        with backend.paused(), backend.paused():
            backend.set_devices(["meta"])
        assert torch.mm(x, x).dtype is setting.high
        with backend.paused():
            backend.set_devices(["cpu"])
            assert torch.mm(x, x).dtype is setting.high
        assert torch.mm(x, x).dtype is setting.low


def initialized(backend, model, optimizer=None):
    """Open a session in which a model is initialized at O1, in dtypes that this torch can compute in."""
    stack = contextlib.ExitStack()
    stack.enter_context(ampcompat.session("O1", backend=backend, dtypes=PAIR, verbosity=0))
    amp.initialize(model, optimizer, verbosity=0)
    return stack


def is_cast(device):
    x = torch.ones(2, 2, dtype=HIGH, device=device)
    return torch.mm(x, x).dtype is LOW


@needs_meta
def test_casts_follow_a_model_that_is_moved(backend):
    if not hasattr(torch.nn.Module, "to_empty"):
        pytest.skip("this torch has no Module.to_empty, the way back from meta")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2).to(HIGH))
    with initialized(backend, model):
        assert is_cast("cpu") and not is_cast("meta")
        model.to("meta")
        assert not is_cast("cpu") and is_cast("meta")
        assert model(torch.ones(2, 2, dtype=HIGH, device="meta")).dtype is LOW
        model[0].to_empty(device="cpu")
        assert is_cast("cpu") and not is_cast("meta")


@needs_meta
def test_casts_follow_a_model_that_a_method_of_another_package_moves(monkeypatch):
    def npu(module):  # torch_npu gives modules such a method; "meta" stands in for its device
        return module._apply(lambda tensor: tensor.to("meta"))

    monkeypatch.setattr(torch.nn.Module, "npu", npu, raising=False)
    monkeypatch.setattr(features, "available_devices", lambda: ("cpu", "npu"))
    model = torch.nn.Linear(2, 2).to(HIGH)
    with initialized("patched", model):  # torch has no autocast for it here
        model.npu()
        assert not is_cast("cpu") and is_cast("meta")


@needs_meta
def test_several_models_cast_on_the_devices_of_all(backend):
    here, there = torch.nn.Linear(2, 2).to(HIGH), torch.nn.Linear(2, 2).to(HIGH).to("meta")
    with initialized(backend, here):
        assert is_cast("cpu") and not is_cast("meta")
        amp.initialize(there, verbosity=0)
        assert is_cast("cpu") and is_cast("meta")


@needs_meta
def test_models_without_params_cast_where_their_optimizer_is_and_else_everywhere(backend):
    param = torch.nn.Parameter(torch.ones(2, dtype=HIGH, device="meta"))
    with initialized(backend, torch.nn.ReLU(), torch.optim.SGD([param], lr=0.1)):
        assert is_cast("meta") and not is_cast("cpu")
    with initialized(backend, torch.nn.ReLU()):
        assert is_cast("meta") and is_cast("cpu")


@needs_meta
def test_initialize_that_fails_leaves_the_devices_of_before(backend):
    model = torch.nn.Linear(2, 2).to(HIGH)
    with initialized(backend, model):
        with pytest.raises(TypeError):
            amp.initialize(torch.nn.Linear(2, 2).to("meta"), "no optimizer", verbosity=0)
        broken = torch.nn.Linear(2, 2).to(HIGH).to("meta")
        optimizer = torch.optim.SGD(broken.parameters(), lr=0.1)
        optimizer.param_groups[0]["params"] = None
        with pytest.raises(TypeError):
            amp.initialize(broken, optimizer, verbosity=0)
        assert is_cast("cpu") and not is_cast("meta")
