"""Emulated half products on a CPU, for networks that scripts cast to half without ``amp.initialize``.

A network is marked in the same way as ``engine.models.forward_conversion`` marks the models of a session. Its
``forward`` then runs in a ``HalfMode``.
"""

import threading

import torch

from ...engine.casting import autograd, emulated_half_models
from ...engine.models import forward_conversion as forwards
from ...support import tensor_lists
from ...support.live_objects import all_objects
from ...support.patching import PatchStack


def emulate(network, dtypes):
    """Emulate products of the low dtype within ``network`` when it runs on a CPU; return ``network``.

    Does nothing if the dtype is not emulated, no param of the network has it, or torch has no function modes.
    """
    low, high = dtypes
    has_low = any(param.dtype is low and tensor_lists.is_narrower(param, high) for param in network.parameters())
    if has_low and not _is_marked(network) and emulated_half_models.mode_for(dtypes) is not None:
        forwards.mark(network, EmulatedForward(type(network), dtypes), PatchStack())  # permanent: no session undoes it
    return network


def emulate_modules_of(params, dtypes):
    """Call ``emulate`` on every module that has one of ``params``, unless it is in a module that is already emulated.

    For callers that have only the params and do not know which of these modules the script will call.
    """
    if not params or emulated_half_models.mode_for(dtypes) is None:
        return
    param_ids = {id(param) for param in params}
    modules = _tracked_modules()
    emulated = {id(inner) for module in modules if _is_marked(module) for inner in module.modules()}
    for module in modules:
        if id(module) not in emulated and any(id(param) in param_ids for param in module.parameters()):
            emulate(module, dtypes)


def _tracked_modules():
    """Return all modules that the garbage collector tracks, without scripted and partly constructed ones."""
    modules = [each for each in all_objects(torch.nn.Module) if "_modules" in vars(each)]
    return [each for each in modules if not isinstance(each, torch.jit.ScriptModule)]


def _is_marked(module):
    return isinstance(vars(module).get(forwards.MARK), EmulatedForward)


class EmulatedForward(forwards.ForwardConversion):
    """The mark of one network. Copies and unpickled networks check again whether the dtype is emulated."""

    def __init__(self, owner, dtypes):
        self._dtypes = dtypes
        self._mode = emulated_half_models.mode_for(dtypes)
        super().__init__(owner)

    def run(self, forward, model, args, kwargs):
        """Call ``forward(model, *args, **kwargs)`` with emulation, unless it is active already."""
        mode = emulated_half_models.context_of(self._mode)
        if mode is None or emulated_half_models.is_active() or not _is_on_cpu(model):
            return forward(model, *args, **kwargs)
        with _recompute_context, mode:
            return forward(model, *args, **kwargs)

    def __deepcopy__(self, memo):
        return EmulatedForward(self.owner, self._dtypes)

    def __reduce__(self):
        return EmulatedForward, (self.owner, self._dtypes)


def _is_on_cpu(model):
    param = None if model is None else next(model.parameters(), None)
    return param is None or param.device.type == "cpu"


class _RecomputeContext:
    """A context in which activation checkpoints are recomputed in the ``HalfMode`` of their forward pass."""

    def __init__(self):
        self._lock = threading.Lock()
        self._inside = 0
        self._patches = PatchStack()

    def __enter__(self):
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                autograd.checkpoint_under_same_casts(emulated_half_models, self._patches)

    def __exit__(self, *exc_info):
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._patches.undo()


_recompute_context = _RecomputeContext()
