"""The facts about one skipped step."""

from typing import NamedTuple, Optional, Sequence

#: Prefix of the name of a whole model, before its class; and the origin of a backward pass.
WHOLE = "the whole "
LOSS = "the loss function"

#: Why no module's output was recorded.
COMPILED = "code compiled by torch.compile or TorchScript runs no hooks"
NOT_CALLED = "none of the initialized modules was called in this step"
NOT_RECORDED = "diagnose=True records them from the first step"
UNWATCHED = "this step was timed, so it had no hooks"


class NonFinite(NamedTuple):
    """A module's output, its gradient, or a param's gradient that was inf or nan."""

    name: str  # "layer3.weight"
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
    last_finite: Optional[str] = None  # the module at whose output the gradient was last finite
    led_up: Sequence = ()  # ``recent_maxima.Growth`` of values that may have led up to it, that of the cause first
    missing_outputs: str = ""  # why no module's output was recorded
    world_size: int = 1


def module_of(param):
    """Return the module of a param: "layer3 of G" for "layer3.weight of G"."""
    name, of, model = param.partition(" of ")
    return (name.rpartition(".")[0] or name) + of + model
