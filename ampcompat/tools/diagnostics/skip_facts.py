"""The facts about one skipped step."""

from typing import NamedTuple, Optional, Sequence

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
    max_before: Optional[float] = None  # its largest finite absolute value in earlier passes, unscaled


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
    bad_weights: Sequence[str] = ()  # of that module, "layer3.weight is nan"
    cast: Optional[NonFinite] = None  # of a wider dtype, finite, just before it, too large for the low dtype
    zero_eps: str = ""  # "Adam's eps of 1e-08", if it is 0 for params in the low dtype
    param_gradient: Optional[NonFinite] = None
    output_gradient: Optional[NonFinite] = None  # at a module's output
    last_finite: Optional[ModelPart] = None  # the module at whose output the gradient was last finite
    led_up: Sequence = ()  # ``recent_maxima.Growth`` of values that may have led up to it, that of the cause first
    missing_outputs: str = ""  # why no module's output was recorded
    world_size: int = 1
