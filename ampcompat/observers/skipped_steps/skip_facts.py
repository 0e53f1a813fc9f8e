"""The facts about one skipped step, and the names of modules and params in messages."""

import functools
import weakref
from typing import NamedTuple, Optional, Sequence, Tuple

from ...support.live_objects import live_items, live_keys

#: Why no module's output was recorded.
COMPILED = "code compiled by torch.compile or TorchScript runs no hooks"
NOT_CALLED = "none of the initialized modules was called in this step"
NOT_RECORDED = "diagnose=True records them from the first step"
UNWATCHED = "this step was timed, so it had no hooks"


class ModelPart(NamedTuple):
    """A module, its input, or a param; ``str`` gives its name in messages."""

    path: str  # "layer3" or "layer3.weight"; "" is the whole model
    model: str = ""  # its class, with a number from the second of its class on
    is_only_model: bool = True
    is_input: bool = False

    @property
    def is_whole(self):
        """Whether this is a whole model."""
        return not self.path and not self.is_input

    def module(self):
        """Return the module of a param."""
        return self._replace(path=self.path.rpartition(".")[0] or self.path)

    def __str__(self):
        name = self.path if self.is_only_model else f"{self.path} of {self.model}"
        name = name if self.path else f"the whole {self.model}"
        return f"the input of {name}" if self.is_input else name


class NonFinite(NamedTuple):
    """A module's output, its gradient, or a param's gradient that was inf or nan."""

    name: ModelPart
    kind: str  # "inf" or "nan"
    dtype: str  # "float16"
    max_before: Optional[float] = None  # its largest finite absolute value in ``RecentPasses``, unscaled


class OverflowFacts(NamedTuple):
    """The findings for one skipped step: the first value of each kind; None if there was none."""

    step: int
    loss_id: int
    scale: float
    dynamic: bool = True
    skipped: bool = True  # False if the scale is static and the step was taken
    skips_in_a_row: int = 1
    is_persistent: bool = False  # number of skips after which the scale is not the cause
    is_min_scale: bool = False
    good_passes: int = 0  # backward passes of this loss without an overflow before it
    low_dtype: str = "float16"  # what the level computes in, and its largest number
    low_max: float = 65504.0
    computes_in_half: bool = True  # whether the level computes anything in half
    loss: Optional[str] = None  # "inf" or "nan"
    input: Optional[NonFinite] = None  # of a module, if it was not finite before any output
    output: Optional[NonFinite] = None
    bad_weights: Sequence[Tuple[ModelPart, str]] = ()  # of that module, with "inf" or "nan"
    cast: Optional[NonFinite] = None  # of a wider dtype, finite, just before it, too large for the low dtype
    zero_eps: str = ""  # "Adam's eps of 1e-08", if it is 0 for params in the low dtype
    param_gradient: Optional[NonFinite] = None
    output_gradient: Optional[NonFinite] = None  # at a module's output
    last_finite: Optional[ModelPart] = None  # the module at whose output the gradient was last finite
    missing_outputs: str = ""  # why no module's output was recorded
    world_size: int = 1


class ModelNames:
    """The diagnosed models and the ``ModelPart`` of each of their modules and params."""

    def __init__(self):
        self._models = weakref.WeakKeyDictionary()  # model -> a function: path -> ``ModelPart``
        self._params = {}  # id(param) -> (weak reference to it, ``ModelPart``)

    def add(self, models):
        """Add models; return (model, function: path of a module -> ``ModelPart``) for the new ones."""
        new = [model for model in models if model not in self._models]
        is_only = len(self._models) + len(new) == 1
        for model in new:
            kind = type(model).__name__
            alike = sum(1 for known in live_keys(self._models) if type(known) is type(model))
            kind = f"{kind} {alike + 1}" if alike and not is_only else kind
            part_of = self._models[model] = functools.partial(ModelPart, model=kind, is_only_model=is_only)
            for name, param in model.named_parameters():
                forget = functools.partial(self._params.pop, id(param))  # given a dead reference: the default of "pop"
                self._params[id(param)] = (weakref.ref(param, forget), part_of(name))
        return [(model, self._models[model]) for model in new]

    def remove(self, model):
        """Forget a model; names of its params are kept."""
        self._models.pop(model, None)

    def models(self):
        """Return (model, function: path -> ``ModelPart``) of all models that still exist."""
        return live_items(self._models)

    def gradients(self, records):
        """Yield (``ModelPart``, unscaled gradient) of the params of optimizers."""
        for record in records:
            params = [pair for pair in record.pairs()] + [(param, param) for param in record.unpaired_params()]
            for index, (param, master) in enumerate(params):
                if master.grad is not None:
                    reference, part = self._params.get(id(param), (_none, None))
                    if reference() is not param:
                        part = ModelPart(f"param {index}", type(record.optimizer).__name__, is_only_model=False)
                    yield part, master.grad

    def clear(self):
        """Forget the models; names of params are kept."""
        self._models.clear()


def _none():
    return None
