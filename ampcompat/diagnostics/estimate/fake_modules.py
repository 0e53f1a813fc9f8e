"""Modules with fake tensors: a copy of a real one, their conversion to other dtypes and devices, and offloading.

The original, on any device, is not changed, and the copy takes no memory.
"""

import copy

import torch

from ...errors import AmpError
from ...support.containers import tensors_in
from ...support.torch_compat import fake_tensors

_PLAIN = (torch.Tensor, torch.nn.Parameter)

#: The device that represents the host.
HOST = "meta"


def fake_copy(model, mode):
    """Return a copy of a module whose tensors are fake, and ``{id(module in it): its copy}``.

    A tensor on the meta device becomes one on the CPU.

    Args:
        mode: the ``FakeTensorMode``; it must be active.

    Raises:
        AmpError: a module cannot be copied.
    """
    memo = {}
    originals = list(model.modules())
    for module in originals:
        for tensor in tensors_in(dict(vars(module))):
            if id(tensor) not in memo:
                memo[id(tensor)] = _fake(tensor, mode)
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:  # of the user's own classes
        raise AmpError(
            f"The model cannot be copied, which estimate does to leave it unchanged: {type(error).__name__}: {error}"
        ) from error
    return copied, {id(module): memo[id(module)] for module in originals if id(module) in memo}


def _fake(tensor, mode):
    if type(tensor) in _PLAIN and tensor.device.type == "meta" and tensor.is_contiguous():  # three times as fast
        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    else:
        fake = mode.from_tensor(tensor.detach(), static_shapes=True)
    if fake.device.type == "meta":
        fake = torch.empty_like(fake, device="cpu")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake.requires_grad_(tensor.requires_grad)


def convert_in_place(patches):
    """Make ``Module.to``, ``half`` and ``cuda`` convert fake params in place, like real ones.

    Torch cannot swap fake params that were used.

    Args:
        patches: the ``PatchStack`` that undoes it.
    """

    def apply_in_place(apply, self, fn, recurse=True):
        own = [param for param in self._parameters.values() if param is not None]
        if not any(fake_tensors.is_fake_type(type(param)) for param in own):
            return apply(self, fn, recurse)
        for module in self.children() if recurse else ():
            module._apply(fn)
        for param in own:
            with torch.no_grad():
                _replace(param, fn)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    patches.wrap(torch.nn.Module, "_apply", apply_in_place)


def _replace(param, fn):
    converted = fn(param)
    gradient = param.grad
    if converted is param:
        return
    if gradient is not None:
        param.grad = None
    param.data = converted
    if gradient is not None:
        param.grad = fn(gradient)


def offload(patches):
    """Make ``save_on_cpu``, and checkpoints that are offloaded by it, copy fake tensors to ``HOST`` and back.

    The fake tensors of a GPU are on the CPU already. So the meter can distinguish the copies from tensors on the GPU,
    and copying them back is a real copy.

    Args:
        patches: the ``PatchStack`` that undoes it.
    """
    graph = torch.autograd.graph

    def init(self, pin_memory=False, device_type="cuda"):
        graph.saved_tensors_hooks.__init__(self, _pack, _unpack)

    patches.set(graph.save_on_cpu, "__init__", init)


def _pack(tensor):
    return tensor.device, tensor.to(HOST)


def _unpack(packed):
    device, copied = packed
    return copied.to(device)
