"""Which module is running, the number of its call in the step, and which models a script has."""

import weakref
from typing import NamedTuple, Optional

import torch

from ..engine.casting import torch_compile


class OpPlace(NamedTuple):
    """The place of a call: the model's number, or None outside every model, and the module's dotted name in it."""

    model: Optional[int]
    module: str

    @property
    def name(self):
        """The module's dotted name, "" for the model itself; None outside every model."""
        return None if self.model is None else self.module

    def layer_of(self, names):
        """Return which of these modules contains or is this one; None if none does."""
        for name in names if self.model is not None else ():
            if not name or self.module == name or self.module.startswith(name + "."):
                return name
        return None


#: The place of a call outside every model.
OUTSIDE = OpPlace(None, "")


def _ignore(*args):
    pass


class ModuleStack:
    """Global module hooks that keep track of the running module (torch 2.0).

    They do nothing where torch.compile traces the calling code.

    Models that were not passed to ``amp.initialize`` are known from their first call on, if they have params.

    Args:
        on_change: called without arguments after a module was entered or left.
        on_model: called as ``on_model(number, model)`` with a model that becomes known by its call, before its
            ``forward``.

    Attributes:
        is_training: whether the outermost running module was called with gradients enabled.
    """

    def __init__(self, on_change=_ignore, on_model=_ignore):
        self._on_change, self._on_model = on_change, on_model
        self._models, self._places, self._handles = [], weakref.WeakKeyDictionary(), []
        self._stack, self._calls = [], {}  # (module, its OpPlace, the number of this call); OpPlace -> number
        self.is_training = False

    def start(self):
        """Register the hooks."""
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self):
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stack, self.is_training = [], False

    def add_models(self, models):
        """Add these models and the names of their modules to the known ones."""
        for model in models:
            if all(model is not known() for known in self._models):
                self._models.append(weakref.ref(model))
                self._name(len(self._models) - 1, model)

    def _name(self, number, model):
        for name, module in model.named_modules():
            self._places.setdefault(module, OpPlace(number, name))

    def models(self):
        """Return the models that are still alive, each with its number."""
        return [(number, model()) for number, model in enumerate(self._models) if model() is not None]

    def begin_step(self):
        """Count calls from 0 again, and update the names of the models' modules."""
        self._calls, self._places = {}, weakref.WeakKeyDictionary()
        for number, model in self.models():
            self._name(number, model)

    def current(self):
        """Return the ``OpPlace`` of the innermost running module, and the number of its call in this step."""
        return self._stack[-1][1:] if self._stack else (OUTSIDE, 0)

    def module(self):
        """Return the innermost running module, or None."""
        return self._stack[-1][0] if self._stack else None

    def caller(self):
        """Return the ``OpPlace`` that the innermost module was called from."""
        return self._stack[-2][1] if len(self._stack) > 1 else OUTSIDE

    def _enter(self, module, args):
        if torch_compile.is_compiling():
            return
        if not self._stack:
            self.is_training = torch.is_grad_enabled()
        if module not in self._places and not self._stack and any(True for _ in module.parameters()):
            self.add_models([module])  # a script without amp
            self._on_model(len(self._models) - 1, module)
        place = self._places.get(module) or self.current()[0]
        number = self._calls[place] = self._calls.get(place, -1) + 1
        self._stack.append((module, place, number))
        self._on_change()

    def _leave(self, module, args, output):
        if torch_compile.is_compiling():
            return
        while self._stack and self._stack.pop()[0] is not module:
            pass  # a forward that raised
        self.is_training = self.is_training and bool(self._stack)
        self._on_change()
