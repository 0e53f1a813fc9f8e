"""The device types of the initialized models, which decide where functions are cast; notices when models are moved."""

import functools

import torch

from ...support.weak_list import WeakList

#: Methods that move a module. All of them call ``Module._apply``, but that is called for each submodule too.
_MOVES = ("to", "cuda", "cpu", "xpu", "ipu", "mtia", "to_empty")


class ModelDevices:
    """Weak references to the initialized models and optimizers, and their device types.

    Args:
        optimizers: optimizers; the devices of their params count for models without params.
    """

    def __init__(self, models=(), optimizers=()):
        self._models, self._optimizers = WeakList(), WeakList()
        for model in models:
            self._models.add(model)
        for optimizer in optimizers:
            self._optimizers.add(optimizer)

    def joined_by(self, models, optimizers):
        """Return these ``ModelDevices`` with more models and optimizers."""
        return ModelDevices([*self._models, *models], [*self._optimizers, *optimizers])

    def types(self):
        """Return the device types of the models' params, else of buffers, else of the optimizers' params, or None."""
        models = list(self._models)
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        for tensors in (
            [param for model in models for param in model.parameters()],
            [buffer for model in models for buffer in model.buffers()],
            [param for group in groups for param in group["params"]],
        ):
            if tensors:
                return {tensor.device.type for tensor in tensors}
        return None


def watch_moves(on_move, patches):
    """Call ``on_move()`` after every call of a method that moves a module; undone by ``patches``."""
    for name in _MOVES:
        original = vars(torch.nn.Module).get(name)
        if original is not None:
            patches.set(torch.nn.Module, name, _noticed(original, on_move))


def _noticed(original, on_move):
    @functools.wraps(original)
    def moving(*args, **kwargs):
        result = original(*args, **kwargs)
        on_move()
        return result

    return moving
