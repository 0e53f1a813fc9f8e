"""``Module.to``, ``half`` and ``cuda`` of modules with fake params, which torch cannot swap once they were used."""

import functools

import torch

from ...support.torch_compat import fake_tensors


def convert_in_place(patches):
    """Make modules with fake params convert them in place, like modules with real params.

    Args:
        patches: the ``PatchStack`` that undoes it.
    """
    apply = torch.nn.Module._apply

    @functools.wraps(apply)
    def apply_in_place(self, fn, recurse=True):
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

    patches.set(torch.nn.Module, "_apply", apply_in_place)


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
