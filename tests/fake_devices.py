"""Fake tensors on devices that this machine lacks: dtype and shape, no values.

A torch that is built without a device still has its autocast kernels, and ``FakeTensorMode`` dispatches to them. Such a
torch has no device guard, though, and aborts where autograd records an operation: everything runs under ``no_grad``.
"""

import contextlib

import pytest
import torch

from ampcompat.selftest.conformance import Device

try:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.overrides import TorchFunctionMode
except ImportError:  # torch before 1.13
    FakeTensorMode = FakeTensor = None
    TorchFunctionMode = object

#: Fake CUDA tensors need flags of autocast by device type, which torch sets without a GPU since 2.4.
REASON = "this torch has no FakeTensorMode, or cannot set autocast's flags for a device that is not there"
HAS_FAKES = FakeTensorMode is not None and hasattr(torch, "get_autocast_dtype")
needs_fakes = pytest.mark.skipif(not HAS_FAKES, reason=REASON)


def why_no_fakes(device):
    """Return why a type of device cannot have fake tensors in this torch, or None."""
    if not HAS_FAKES:
        return REASON
    try:
        with FakeTensorMode(), autocast_flags(device, torch.float16):
            torch.empty(2, 2, device=device + ":0").exp()
    except (RuntimeError, AssertionError) as error:
        return "no fake {} tensors: {}".format(device, str(error).split("\n")[0])
    return None


@contextlib.contextmanager
def autocast_flags(device, dtype):
    """Turn autocast on for a device that ``torch.autocast`` refuses."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


class FakeDevice(Device):
    """A device of ``ampcompat.selftest.conformance`` whose tensors are fake."""

    has_values = False

    def __init__(self, name):
        super().__init__(name)
        self.mode = FakeTensorMode()

    def put(self, tensor, requires_grad=False):
        """Return a fake tensor of the CPU tensor's dtype, shape and strides."""
        return self.mode.fake_tensor_converter.from_meta_and_device(
            self.mode, tensor.detach().to("meta"), torch.device(self.name, 0)
        )

    def call(self, function, args, kwargs):
        """Call a function on fake arguments."""
        with self.running():
            return function(*args, **kwargs)

    @contextlib.contextmanager
    def running(self):
        """Return a context in which functions take fake tensors on this device, and make them."""
        with self.mode, _CopiesWithoutGuard(), torch.no_grad():
            yield


class _CopiesWithoutGuard(TorchFunctionMode):
    """The Python form of ``Tensor.copy_`` asks for a device guard before it dispatches; the operation does not."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.Tensor.copy_:
            return torch.ops.aten.copy_.default(*args, **kwargs)
        return function(*args, **kwargs)
