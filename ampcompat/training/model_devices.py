"""The device types of the initialized models, which decide where functions are cast; notices when models are moved."""

import functools
import weakref

import torch

#: Methods that move a module. All of them call ``Module._apply``, but that is called for each submodule too.
_MOVES = ("to", "cuda", "cpu", "xpu", "ipu", "mtia", "to_empty")


class ModelDevices:
    """Weak references to the initialized models and optimizers, and their device types.

    Args:
        models: modules.
        optimizers: optimizers; the devices of their params count for models without params.
    """

    def __init__(self, models=(), optimizers=()):
        self._models = [weakref.ref(model) for model in models]
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]

    def joined_by(self, models, optimizers):
        """Return these ``ModelDevices`` with more models and optimizers."""
        return ModelDevices(_alive(self._models) + list(models), _alive(self._optimizers) + list(optimizers))

    def types(self):
        """Return the device types of the models' params, else of buffers, else of the optimizers' params, or None."""
        models = _alive(self._models)
        found = {param.device.type for model in models for param in model.parameters()}
        found = found or {buffer.device.type for model in models for buffer in model.buffers()}
        return found or self._optimized() or None

    def _optimized(self):
        groups = [group for optimizer in _alive(self._optimizers) for group in optimizer.param_groups]
        return {param.device.type for group in groups for param in group["params"]}


def _alive(references):
    return [found for found in [reference() for reference in references] if found is not None]


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
