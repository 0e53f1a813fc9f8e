"""Which module runs now, and its how many-th call of the step it is; and which models a script has."""

import weakref

import torch

from ..forecast.op_calls import OUTSIDE, OpPlace


class ModuleStack:
    """Hooks of all modules that follow which one runs.

    Models that ``amp.initialize`` was not given are known from their first call, if they have params.
    """

    def __init__(self):
        self._models, self._places, self._handles = [], weakref.WeakKeyDictionary(), []
        self._stack, self._calls = [], {}

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

    def add_models(self, models):
        """Name the modules of these models, beside those known already."""
        for model in models:
            if all(model is not known() for known in self._models):
                self._models.append(weakref.ref(model))
                number = len(self._models) - 1
                for name, module in model.named_modules():
                    self._places.setdefault(module, OpPlace(number, name))

    def models(self):
        """Return the models that are still alive, each with its number."""
        return [(number, model()) for number, model in enumerate(self._models) if model() is not None]

    def tensors(self):
        """Return ``{(model, name): tensor}`` of all params and buffers; of a shared one the first name."""
        found = {}
        for number, model in self.models():
            for named in (model.named_parameters(), model.named_buffers()):
                found.update({(number, name): tensor for name, tensor in named})
        return found

    def begin_step(self):
        """Count calls from 0."""
        self._calls = {}

    def current(self):
        """Return the ``OpPlace`` of the innermost module that runs, and the number of its call in this step."""
        if not self._stack:
            return OUTSIDE, 0
        return self._stack[-1][1:]

    def _enter(self, module, args):
        if module not in self._places and not self._stack and any(True for _ in module.parameters()):
            self.add_models([module])  # a script without amp
        place = self._places.get(module) or self.current()[0]
        number = self._calls[place] = self._calls.get(place, -1) + 1
        self._stack.append((module, place, number))

    def _leave(self, module, args, output):
        while self._stack and self._stack.pop()[0] is not module:
            pass  # a forward that raised
