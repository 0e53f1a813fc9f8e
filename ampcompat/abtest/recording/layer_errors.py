"""The error that each layer adds: its output and its params' gradients, compared with float32 on the same inputs.

The error of a layer (a module without children) is that of its own call: the call is repeated in float32 with the same
weights, inputs and random state. So it does not include the error of the layers before it. The error of a param's
gradient is that of the whole backward pass: the model is run again in float32, with a backward pass from the gradient
of its output.

    error = norm of (value - float32 value) / norm of the float32 value, in float64
"""

import contextlib
import copy
import math

import torch

from ...engine.models.forward_conversion import MARK
from ...support import random_state
from ...support.nested import cast_floating, floating_tensors
from ...support.observer import Observer
from ...support.torch_compat import features
from ...support.uncopied_hook import ModuleHook

#: The steps in which layers are compared; memory and time are not measured in these.
STEPS = (3, 16, 36)

#: If gradients overflow in such a step, the loss scale is too large, and no layer is at fault. Up to this number of
#: steps is tried until one does not overflow.
TRIES = 20


class LayerErrors(Observer):
    """Compares layers with float32 in a few steps of a session.

    Attributes:
        outputs, gradients: ``{name of the layer or param: largest error of the steps}``; nan for a layer that was never
            compared, inf for a gradient that overflowed in each step that was tried.

    Args:
        steps: the steps in which layers are compared.
        measured: steps that are not used instead of one with an overflow, since memory is measured in them.
    """

    def __init__(self, steps=STEPS, measured=()):
        self.outputs, self.gradients = {}, {}
        self.is_watching = False
        self._steps, self._measured = frozenset(steps), frozenset(measured)
        self._tries = 0  # steps that may still be compared, until one has no overflow
        self._has_overflowed = False
        self._has_news = False
        self._session = None
        self._inputs = {}  # layer -> (arguments, random state) of the call in progress
        self._whole = []  # a copy of the model, its arguments, random state, gradients at outputs: of each forward pass
        self._is_comparing = False
        self._handles = []

    # -- what the recorder calls ---------------------------------------------------------------------------------------

    def step_ended(self, next_step):
        """Compare in ``next_step`` if it is one of the steps, or replaces one in which gradients overflowed."""
        if self.is_watching:
            self._tries = self._tries - 1 if self._has_overflowed else 0
        if next_step in self._steps:
            self._tries = TRIES
        self.is_watching = self._tries > 0 and next_step not in self._measured
        self._has_overflowed = False
        self._whole, self._inputs = [], {}

    def new_events(self):
        """Return an event of all errors so far if there are new ones."""
        if not self._has_news:
            return []
        self._has_news = False
        return [{"layers": [list(item) for item in self.outputs.items()], "gradients": list(self.gradients.items())}]

    # -- callbacks of the session --------------------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        """Register hooks on the layers, and on the models themselves."""
        self._session = session
        options = {"with_kwargs": True} if features.has_hooks_with_kwargs() else {}
        for model in models:
            self._handles.append(model.register_forward_pre_hook(ModuleHook(self._model_called), **options))
            self._handles.append(model.register_forward_hook(ModuleHook(self._model_returned)))
            for name, module in model.named_modules():
                if not any(True for _ in module.children()):
                    name = name or type(model).__name__
                    self._handles.append(module.register_forward_pre_hook(ModuleHook(self._layer_called), **options))
                    self._handles.append(module.register_forward_hook(ModuleHook(self._layer_returned, name)))
                    self.outputs.setdefault(name, math.nan)

    def closed(self, session):
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def after_backward(self, backward):
        """Compare the gradients of the params if the step has one forward pass."""
        if not self.is_watching or len(self._whole) != 1 or backward.delay_unscale:
            return
        reference, args, kwargs, state, gradients = self._whole.pop()
        if not gradients:
            return
        with self._in_float32(state), torch.enable_grad():
            outputs = _differentiable(reference(*args, **kwargs))
            named = [(name, param) for name, param in reference.named_parameters() if param.requires_grad]
            by = [gradient.float() / float(backward.scale) for gradient in gradients]
            wanted = torch.autograd.grad(outputs, [param for _, param in named], by, allow_unused=True)
        found = self._gradients_by_name(backward.records)
        pairs = [(name, expected) for (name, _), expected in zip(named, wanted) if expected is not None]
        pairs = [(name, found[name], expected) for name, expected in pairs if name in found]
        self._has_overflowed = not all(torch.isfinite(gradient).all() for _, gradient, _ in pairs)
        if not self._has_overflowed or self._tries == 1:
            for name, gradient, expected in pairs:
                self._note(self.gradients, name, gradient, expected)

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def _model_called(self, model, args, kwargs=None):
        if not self._is_on(model):
            return
        self._model = model
        reference = _float_copy(model)
        inputs = _detached(args), _detached(kwargs or {})
        self._whole.append((reference,) + inputs + (random_state.capture(), []))

    def _model_returned(self, model, args, output):
        if self._is_on(model) and self._whole:
            gradients = self._whole[-1][-1]
            outputs = _differentiable(output)
            gradients.extend([None] * len(outputs))
            for place, tensor in enumerate(outputs):
                tensor.register_hook(lambda gradient, place=place: gradients.__setitem__(place, gradient.detach()))

    def _layer_called(self, module, args, kwargs=None):
        if self._is_on(module):
            self._inputs[module] = _detached(args), _detached(kwargs or {}), random_state.capture()

    def _layer_returned(self, name, module, args, output):
        if not self._is_on(module) or module not in self._inputs:
            return
        args, kwargs, state = self._inputs.pop(module)
        with self._in_float32(state), torch.no_grad():
            expected = _float_copy(module)(*args, **kwargs)
        for value, reference in zip(floating_tensors(output, []), floating_tensors(expected, [])):
            self._note(self.outputs, name, value, reference)

    def _is_on(self, module):
        return self.is_watching and not self._is_comparing and module.training and torch.is_grad_enabled()

    @contextlib.contextmanager
    def _in_float32(self, state):
        """A context in which casts are disabled and the random state is ``state``; restores both afterwards."""
        self._is_comparing = True
        try:
            with random_state.restored(state), self._session.process_casts.paused():
                yield
        finally:
            self._is_comparing = False

    def _note(self, errors, name, value, expected):
        if torch.isfinite(expected).all():  # otherwise the input was not finite, and no layer is at fault
            errors[name] = max(relative_error(value, expected), errors.get(name, math.nan))
        self._has_news = True

    def _gradients_by_name(self, records):
        masters = {}
        for record in records:
            pairs = list(record.pairs()) + [(param, param) for param in record.unpaired_params()]
            masters.update({id(param): master.grad for param, master in pairs if master.grad is not None})
        named = self._model.named_parameters()
        return {name: masters[id(param)] for name, param in named if id(param) in masters}


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


def _differentiable(value):
    return [tensor for tensor in floating_tensors(value, []) if tensor.grad_fn is not None]
