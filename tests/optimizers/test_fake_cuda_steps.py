"""A training step on fake CUDA tensors, whose values cannot be read: any host read or copy to the CPU is an error."""

import inspect
import types

import pytest
import torch
from helpers.fake_devices import FakeDevice, features_of_cuda, move, needs_fakes

import ampcompat
from ampcompat import amp
from ampcompat.apex import optimizers as apex_optimizers
from ampcompat.engine.loss_scaling import overflow_check
from ampcompat.support.torch_compat import features

pytestmark = [
    needs_fakes,
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
]


def flagged_optimizers():
    """Return [(name, make)] of torch's fused optimizers and of Apex's, which take ``found_inf``."""
    found = []
    for name, kind in sorted(vars(torch.optim).items()):
        if inspect.isclass(kind) and "fused" in inspect.signature(kind).parameters:
            found.append((name + " fused", lambda params, kind=kind: kind(params, lr=0.1, fused=True)))
    for name, kind in sorted(vars(apex_optimizers).items()):
        if inspect.isclass(kind) and name.startswith("Fused"):
            found.append((name, lambda params, kind=kind: kind(params, lr=0.1)))
    found.append(("FusedSGD momentum", lambda params: apex_optimizers.FusedSGD(params, lr=0.1, momentum=0.9)))
    return found


@pytest.fixture(autouse=True)
def on_cuda():
    with features_of_cuda():
        yield


def no_copies_to_the_host():
    """Return a context in which a copy of a CUDA tensor to the CPU raises.

    Some fused kernels have no meta kernel; they change tensors in place and return None, and here they do nothing.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    without_meta = [torch.ops.aten._fused_sgd_, torch.ops.aten._fused_adagrad_]
    if features.is_version_within(newest="2.4"):
        without_meta.append(torch.ops.aten._fused_adamw_)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.overloadpacket in without_meta:
                return None
            result = function(*args, **(kwargs or {}))
            on_cuda = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.is_cuda]
            if on_cuda and isinstance(result, torch.Tensor) and result.device.type == "cpu":
                raise AssertionError(f"{function} copies to the host")
            return result

    return Mode()


@pytest.fixture(autouse=True)
def flags_are_read(monkeypatch):
    """Let a flag of an overflow be read like a real one, which shows that the host waits: for fake ones it is not."""
    without_fakes = types.SimpleNamespace(is_fake_type=lambda kind: False)
    monkeypatch.setattr(overflow_check, "fake_tensors", without_fakes)


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def step(model, optimizer, batch):
    """Do one iteration; gradients are set by hand, since backward needs a device guard."""
    optimizer.zero_grad()
    loss = model(batch).float().pow(2).mean()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss.device.type == "cuda"
        for param in model.parameters():
            param.grad = torch.ones_like(param)
    torch.nn.utils.clip_grad_norm_(list(amp.master_params(optimizer)), 1.0)
    optimizer.step()


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("name, make", flagged_optimizers(), ids=[name for name, _ in flagged_optimizers()])
def test_a_step_reads_no_value_from_the_device(level, name, make):
    device = FakeDevice("cuda")
    model, batch = move(make_model(), device), device.put(torch.ones(3, 4))
    with device.running(), ampcompat.session(level, verbosity=0) as session:
        try:
            optimizer = make(list(model.parameters()))
        except RuntimeError as error:
            if "supported devices" not in str(error):
                raise
            pytest.skip(f"this torch has it for other devices only: {error}")
        if name == "Adagrad fused" and not getattr(optimizer, "_step_supports_amp_scaling", False):
            pytest.skip("fused Adagrad of this torch does not take found_inf")
        amp.initialize(model, optimizer, growth_interval=2)
        with no_copies_to_the_host():
            for _ in range(4):
                step(model, optimizer, batch)
        assert session.scalers[0].scale_now().device.type == "cuda"
        with pytest.raises(RuntimeError, match="_local_scalar_dense"):  # whoever asks for the scale reads it
            amp.state_dict()


def test_a_step_of_an_optimizer_without_found_inf_reads_one():
    device = FakeDevice("cuda")
    model, batch = move(make_model(), device), device.put(torch.ones(3, 4))
    with device.running(), ampcompat.session("O1", verbosity=0):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer)
        with pytest.raises(RuntimeError, match="_local_scalar_dense"):
            step(model, optimizer, batch)
