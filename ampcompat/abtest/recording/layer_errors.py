"""The error that each layer adds, by which ``ab --find-keep-fp32`` ranks layers.

The error of a layer (a module without children) is that of its own call: the call is repeated in float32 with the same
weights, inputs and random state. So it does not include the error of the layers before it.

    error = norm of (value - float32 value) / norm of the float32 value, in float64
"""

import contextlib
import copy
import math

import torch

from ...engine.models.forward_conversion import MARK
from ...support import random_state
from ...support.containers import cast_floating, floating_tensors
from ...support.observer import Observer
from ...support.patching import PatchStack
from ...trace.hooks import after_call, before_call, is_training_call

#: The steps in which layers are compared; memory and time are not measured in these.
STEPS = (3, 16, 36)


class LayerErrors(Observer):
    """Compares layers with float32 in a few steps of a session.

    Attributes:
        outputs: ``{name of the layer: largest error of the steps}``; nan for a layer that was never compared.
    """

    def __init__(self):
        self.outputs = {}
        self.is_watching = False
        self._has_news = False
        self._session = None
        self._inputs = {}  # layer -> (arguments, random state) of the call in progress
        self._is_comparing = False
        self._hooks = PatchStack()

    # -- what the recorder calls ---------------------------------------------------------------------------------------

    def step_ended(self, next_step):
        """Compare in ``next_step`` if it is one of ``STEPS``."""
        self.is_watching = next_step in STEPS
        self._inputs = {}

    def new_events(self):
        """Return an event of all errors so far if there are new ones."""
        if not self._has_news:
            return []
        self._has_news = False
        return [{"layers": [list(item) for item in self.outputs.items()]}]

    # -- callbacks of the session --------------------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        """Register hooks on the layers."""
        self._session = session
        for model in models:
            for name, module in model.named_modules():
                if not any(True for _ in module.children()):
                    name = name or type(model).__name__
                    before_call(self._hooks, module, self._layer_called)
                    after_call(self._hooks, module, self._layer_returned, name)
                    self.outputs.setdefault(name, math.nan)

    def closed(self, session):
        """Remove the hooks."""
        self._hooks.undo()

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def _layer_called(self, module, args, kwargs):
        if self._is_on(module):
            self._inputs[module] = _detached(args), _detached(kwargs), random_state.capture()

    def _layer_returned(self, name, module, args, output):
        if not self._is_on(module) or module not in self._inputs:
            return
        args, kwargs, state = self._inputs.pop(module)
        with self._in_float32(state), torch.no_grad():
            expected = _float_copy(module)(*args, **kwargs)
        for value, reference in zip(floating_tensors(output, []), floating_tensors(expected, [])):
            self._note(name, value, reference)

    def _is_on(self, module):
        return self.is_watching and not self._is_comparing and is_training_call(module)

    @contextlib.contextmanager
    def _in_float32(self, state):
        """A context in which casts are disabled and the random state is ``state``; restores both afterwards."""
        self._is_comparing = True
        try:
            with random_state.restored(state), self._session.process_casts.paused():
                yield
        finally:
            self._is_comparing = False

    def _note(self, name, value, expected):
        if torch.isfinite(expected).all():  # otherwise the input was not finite, and no layer is at fault
            self.outputs[name] = max(relative_error(value, expected), self.outputs.get(name, math.nan))
        self._has_news = True


def relative_error(value, expected):
    """Return norm(value - expected) / norm(expected) of two tensors in float64; inf if ``value`` is not finite."""
    value, expected = value.detach().double(), expected.detach().double()
    if not torch.isfinite(value).all():
        return float("inf")
    distance, size = (value - expected).norm().item(), expected.norm().item()
    return distance / size if size else float("inf") if distance else 0.0


def _float_copy(module):
    """Return a float32 copy of a module, with the same weights and without the conversions around ``forward``."""
    twin = copy.deepcopy(module)
    for part in twin.modules():
        vars(part).pop(MARK, None)
    return twin.float()


def _detached(value):
    """Return nested arguments in which floating-point tensors are float32 copies."""
    if isinstance(value, torch.Tensor):
        return value.detach().float().clone() if value.is_floating_point() else value.clone()
    if isinstance(value, dict):
        return {key: _detached(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_detached(item) for item in value)
    return cast_floating(value, torch.float32)
