"""Fake tensors on devices that this machine lacks: dtype and shape, no values.

A torch that is built without a device still has its autocast kernels, and ``FakeTensorMode`` dispatches to them. Such a
torch has no device guard, though, and aborts where autograd records an operation: everything runs under ``no_grad``.
"""

import contextlib
import functools

import pytest
import torch

from ampcompat.apex.multi_tensor import updates
from ampcompat.diagnostics.selftest.sample_arguments import Device
from ampcompat.support.patching import PatchStack
from ampcompat.support.torch_compat import fake_tensors, features

try:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._python_dispatch import _disable_current_modes
except ImportError:  # torch before 2.0, where nothing needs them
    FakeTensorMode = FakeTensor = _disable_current_modes = None

#: Fake CUDA tensors need flags of autocast by device type, which torch sets without a GPU since 2.4.
REASON = "this torch has no FakeTensorMode, or cannot set autocast's flags for a device that is not there"
HAS_FAKES = FakeTensorMode is not None and hasattr(torch, "get_autocast_dtype")
needs_fakes = pytest.mark.skipif(not HAS_FAKES, reason=REASON)
needs_fake_steps = pytest.mark.skipif(
    not features.is_version_within(oldest=fake_tensors.OLDEST),
    reason="fake tensors go through a step since torch " + fake_tensors.OLDEST,
)

#: Exceptions of fake tensors, by a part of the message or the class name, and why the form cannot be called on them.
NOT_FOR_FAKES = {
    "DataDependentOutputException": "the result depends on values, which fake tensors lack",
    "DynamicOutputShapeException": "the shape of the result depends on values, which fake tensors lack",
    "Torch not compiled with": "no meta kernel: torch would run the device's own",
    "Found no NVIDIA driver": "no meta kernel: torch would run the device's own",
    "Cannot access accelerator device": "no meta kernel: torch would run the device's own",
    "Could not run 'aten::": "no meta kernel: torch would run the device's own",
    "DispatchStub.cpp": "torch asks the device which of its kernels it has",
    "driver version is insufficient": "no meta kernel: torch would run the device's own",
    "and is now removed": "torch keeps the name for the sake of this error",
    "not linked with support for": "the function asks for a device guard, which this build lacks",
}


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


def reason_to_leave_out(error):
    """Return why an exception says that a function cannot be called on fake tensors; None if it says another thing."""
    found = f"{type(error).__name__}: {error}"
    return next((why for words, why in NOT_FOR_FAKES.items() if words in found), None)


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


@contextlib.contextmanager
def features_of_cuda():
    """Answer as CUDA does what ampcompat tries out with a backward pass or a value; forget what fakes have answered."""
    with PatchStack() as patches:
        patches.set(features, "has_mixed_batch_norm", lambda device, low, high: True)
        for name in ("has_flagged_sgd", "has_foreach_unscale", "has_fused_scale_update"):
            patches.set(features, name, lambda *args: True)
        patches.set(updates, "_is_available", lambda device, dtype, decoupled: True)
        yield
    for function in vars(features).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


class FakeDevice(Device):
    """A device of ``ampcompat.diagnostics.selftest.sample_arguments`` whose tensors are fake."""

    has_values = False

    def __init__(self, name):
        super().__init__(name)
        self.mode = FakeTensorMode()

    def put(self, tensor, requires_grad=False):
        """Return a fake tensor of the CPU tensor's dtype, shape and strides."""
        if isinstance(tensor, FakeTensor):  # torch 2.4 makes no fake tensor of another
            with _disable_current_modes():
                meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        else:
            meta = tensor.detach().to("meta")
        return self.mode.fake_tensor_converter.from_meta_and_device(self.mode, meta, torch.device(self.name, 0))

    def call(self, function, args, kwargs):
        """Call a function on fake arguments."""
        with self.running():
            return function(*args, **kwargs)

    @contextlib.contextmanager
    def running(self):
        """Return a context in which functions take fake tensors on this device, and make them."""
        with PatchStack() as patches, self.mode, torch.no_grad():
            for name, replacement in _WITHOUT_GUARD.items():
                patches.set(torch.Tensor, name, _for_fakes(getattr(torch.Tensor, name), replacement))
            yield


def move(model, device):
    """Replace the params and buffers of a model on the CPU by fake ones."""
    moved = {}
    for module in model.modules():
        for name, param in list(module._parameters.items()):
            if param is not None:
                if param not in moved:
                    moved[param] = torch.nn.Parameter(device.put(param), requires_grad=param.requires_grad)
                setattr(
                    module, name, moved[param]
                )  # not into ``_parameters``: recurrent layers have a list of their own
        for name, buffer in list(module._buffers.items()):
            module._buffers[name] = None if buffer is None else device.put(buffer)
    return model


@contextlib.contextmanager
def data_moves():
    """Let ``param.data = tensor`` move a fake param to the device of the tensor, as it moves a real one."""

    def set_data(self, value):
        _DATA.__set__(self, value)
        if isinstance(self, FakeTensor):
            self.fake_device = value.device

    with PatchStack() as patches:
        patches.set(torch.Tensor, "data", property(_DATA.__get__, set_data, _DATA.__delete__, _DATA.__doc__))
        yield


#: The descriptor of ``data``, which ``torch.Tensor`` inherits.
_DATA = torch._C._TensorBase.data if hasattr(torch._C, "_TensorBase") else torch._C.TensorBase.data


def _indexed(original, self, indices):
    """Index with integers, slices, None and an ellipsis; leave the rest to the original."""
    index = indices if isinstance(indices, tuple) else (indices,)
    if not all(each is None or each is Ellipsis or isinstance(each, (int, slice)) for each in index):
        return original(self, indices)
    named = [each for each in index if each is not None and each is not Ellipsis]
    dim, skipped = 0, self.dim() - len(named)
    for each in index:
        if isinstance(each, int):
            self = torch.ops.aten.select.int(self, dim, each)
            continue
        if each is None:
            self = self.unsqueeze(dim)
        elif isinstance(each, slice):
            self = torch.ops.aten.slice.Tensor(self, dim, each.start, each.stop, each.step or 1)
        dim += skipped if each is Ellipsis else 1
    return self


#: Methods whose Python form asks for a device guard before it dispatches, and operations of which none does.
_WITHOUT_GUARD = {
    "copy_": lambda original, *args, **kwargs: torch.ops.aten.copy_.default(*args, **kwargs),
    "contiguous": lambda original, *args, **kwargs: torch.ops.aten.contiguous.default(*args, **kwargs),
    "__getitem__": _indexed,
}


def _for_fakes(original, replacement):
    @functools.wraps(original)
    def method(self, *args, **kwargs):
        if isinstance(self, FakeTensor):
            return replacement(original, self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return method
