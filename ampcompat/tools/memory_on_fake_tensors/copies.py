"""Fake copies of modules: the originals, on any device, are not changed, and the copies take no memory."""

import copy

import torch

from ...errors import AmpError
from ...support.nested import tensors_in

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def fake_copies(models, mode):
    """Return copies of modules whose tensors are fake, and ``{id(module): its copy}``.

    Shared modules and tensors are shared by the copies. A tensor on the meta device becomes one on the CPU.

    Args:
        models: a list of modules.
        mode: the ``FakeTensorMode``; it must be active.

    Raises:
        AmpError: a module cannot be copied.
    """
    memo = {}
    for module in [module for model in models for module in model.modules()]:
        for tensor in tensors_in(dict(vars(module))):
            if id(tensor) not in memo:
                memo[id(tensor)] = _fake(tensor, mode)
    originals = [module for model in models for module in model.modules()]
    try:
        copies = copy.deepcopy(list(models), memo)
    except Exception as error:  # of the user's own classes
        raise AmpError(
            f"The model cannot be copied, which estimate does to leave it unchanged: {type(error).__name__}: {error}"
        ) from error
    return copies, {id(module): memo[id(module)] for module in originals if id(module) in memo}


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
