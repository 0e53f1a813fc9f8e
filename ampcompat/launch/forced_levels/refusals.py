"""What a forced level refuses: each error gives the line of the script and says what to do."""

from ...errors import AmpError
from ...support.script_frames import script_line

#: What an optimizer does; the level replaces ``{level}``.
NO_MODULE = (
    "trains tensors, and no module that holds them was called with gradients enabled, so opt level {level} cannot be "
    "applied to them. Make them params of a torch.nn.Module and call it (torch.func computes outside of modules), or "
    "run the script without --opt-level."
)
FLOAT64 = (
    "trains float64 params, and opt level {level} computes in float32 or half. Train the model in float32 (remove "
    ".double() and torch.set_default_dtype), or run the script without --opt-level."
)
GRADIENTS_PER_SAMPLE = (
    "uses per-sample gradients (opacus), which are clipped before opt level {level} could unscale them and make them "
    "float32. Train without privacy, or at --opt-level O0."
)
FIRST_FSDP = (
    "trains a model in FullyShardedDataParallel (FSDP1), whose flat weights opt level {level} cannot be applied to. "
    "Shard the model by torch.distributed.fsdp.fully_shard, which works at every opt level, or run the script without "
    "--opt-level."
)
INNER_STEP = (
    "steps on the float32 weights of {outer}, outside of its step(), so opt level {level} would not round them into "
    "the model. Call {outer}.step(closure), or use --opt-level O0, O1 or O4, which have no half weights."
)


def refused(optimizer, made_at, reason, level, **words):
    """Return the error for one of these reasons, with the optimizer and the line where it was created."""
    return AmpError(f"{type(optimizer).__name__} of {made_at} " + reason.format(level=level, **words))


def half_by_hand(method, level):
    """Return the error that the script casts a model that an optimizer trains."""
    return AmpError(
        "{}:{}: .{}() casts a model that an optimizer trains, whose dtypes opt level {} decides. Remove the call (for "
        "a half copy to save or evaluate, cast a copy.deepcopy), or run the script without --opt-level.".format(
            *script_line(), method, level
        )
    )
