"""Gradients of params of initialized models that no optimizer has: a block leaves true ones there, too.

A script may clip or log them with all others. So may params of optimizers that amp did not get
(``optimizers_without_amp``). None of them are checked for overflow, since no step that amp can skip uses them.
"""

import sys
import weakref
from itertools import chain

import torch

from ...support import tensor_lists
from ...support.live_objects import WeakList
from ...support.tensor_lists import add_gradients, set_stored_gradient, stored_gradient
from ...support.torch_compat.thread_blocks import grad_enabled
from ..loss_scaling.loss_scaler import is_same

_module = sys.modules[torch.nn.Module.__module__]
_REGISTRATION_HOOKS = ("register_module_module_registration_hook", "register_module_parameter_registration_hook")


class UntrainedParams:
    """The params of a configuration's models that no optimizer has, and the passes that are open.

    The list is made anew when a model or an optimizer was added or freed, ``param_groups`` have changed
    (``OptimizerRecord.follow_groups``), or any module has got a param or a submodule (torch 2.0). A weak reference to
    each param would keep ``torch.utils.swap_tensors`` from exchanging it.
    """

    def __init__(self):
        self._owners, self._params = (), None  # weak references to the models and to the records
        self.passes = WeakList()  # ``UntrainedPass`` objects; a block may be abandoned in a generator

    def forget(self, reference=None):
        """Make the list anew when it is needed next."""
        self._owners, self._params = (), None

    def params(self, session, configuration):
        """Return the params, as a list."""
        if self._params is None:
            models, trained = session.models_of(configuration), trained_ids(session)
            found = {id(param): param for model in models for param in model.parameters()}
            self._owners = [weakref.ref(each, self.forget) for each in models + session.records]
            self._params = [param for key, param in found.items() if key not in trained]
        return self._params


def trained_ids(session):
    """Return the ids of the params that the optimizers of a session have: half ones, their masters, and all others."""
    groups = [group["params"] for record in session.records for group in record.optimizer.param_groups]
    leaves = [record.leaf_params() for record in session.records]
    return set(map(id, chain.from_iterable(groups + leaves)))


class UntrainedPass:
    """What one block, which begins now, does to gradients of params that no optimizer has.

    Args:
        params: the params.
        scale: that of the block: a float, or a tensor of shape ().
        open_passes: a ``WeakList`` of the passes that are open, which may reach the same params, the innermost last.
    """

    def __init__(self, params, scale, open_passes):
        self.params, self._scale, self._open = params, scale, open_passes
        self._aside = []  # (param, gradient): half ones, which could overflow when they are multiplied
        wide = []
        for param in params:
            gradient = stored_gradient(param)
            if gradient is None:
                continue
            if tensor_lists.is_narrower(gradient, torch.float32):
                self._aside.append((param, gradient.clone() if gradient._is_view() else gradient))
                set_stored_gradient(param, None)
            else:
                wide.append(gradient)
        self._multiply(wide, scale, self._scale_around())
        self._open.add(self)

    def end(self):
        """Divide the new gradients by the scale, and add them to the earlier ones."""
        self._open.discard(self)
        gradients = [gradient for gradient in map(stored_gradient, self.params) if gradient is not None]
        self._multiply(gradients, self._scale_around(), self._scale)
        if self._aside:
            with grad_enabled(False):
                add_gradients(*zip(*self._aside))

    def _scale_around(self):
        """Return the scale that gradients have around this block: 1 if no other block is open."""
        around = list(self._open)
        return around[-1]._scale if around else 1.0

    @staticmethod
    def _multiply(gradients, factor, divisor):
        if gradients and not is_same(factor, divisor):
            with grad_enabled(False):
                tensor_lists.multiply_(tensor_lists.grouped(gradients), factor / divisor)


def have_registration_hooks():
    """Return whether torch calls hooks when a module gets a param or a submodule: from 2.0 on."""
    return all([hasattr(_module, name) for name in _REGISTRATION_HOOKS])


def watch_registrations(changed, patches):
    """Call ``changed()`` when any module gets a param or a submodule, before it has it; undone by ``patches``."""

    def registered(module, name, value):
        changed()

    for name in _REGISTRATION_HOOKS if have_registration_hooks() else ():
        patches.register(getattr(_module, name), registered)
