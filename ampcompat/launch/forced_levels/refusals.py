"""Errors for scripts on which no level can be forced: each gives the line of the script and says what to do."""

from ...errors import AmpError
from ...support.script_frames import script_line


def no_module(optimizer, made_at, level):
    """Return the error that an optimizer is about to train tensors that are in no module that was called."""
    return AmpError(
        f"{type(optimizer).__name__} of {made_at} trains tensors, and no module that holds them was called with "
        f"gradients enabled, so opt level {level} cannot be applied to them. Make them params of a torch.nn.Module and "
        "call it (torch.func computes outside of modules), or run the script without --opt-level."
    )


def float64(optimizer, made_at, level):
    """Return the error that an optimizer trains float64 params, which no level supports."""
    return AmpError(
        f"{type(optimizer).__name__} of {made_at} trains float64 params, and opt level {level} computes in float32 or "
        "half. Train the model in float32 (remove .double() and torch.set_default_dtype), or run the script without "
        "--opt-level."
    )


def gradients_per_sample(optimizer, made_at, level):
    """Return the error that per-sample gradients would be scaled, or half."""
    return AmpError(
        f"{type(optimizer).__name__} of {made_at} uses per-sample gradients (opacus), which are clipped before opt "
        f"level {level} could unscale them and make them float32. Train without privacy, or at --opt-level O0."
    )


def first_fsdp(optimizer, made_at, level):
    """Return the error that a model is sharded by FSDP1, which no level supports."""
    return AmpError(
        f"{type(optimizer).__name__} of {made_at} trains a model in FullyShardedDataParallel (FSDP1), whose flat "
        f"weights opt level {level} cannot be applied to. Shard the model by torch.distributed.fsdp.fully_shard, which "
        "works at every opt level, or run the script without --opt-level."
    )


def half_by_hand(method, level):
    """Return the error that the script casts a model that an optimizer trains."""
    return AmpError(
        "{}:{}: .{}() casts a model that an optimizer trains, whose dtypes opt level {} decides. Remove the call (for "
        "a half copy to save or evaluate, cast a copy.deepcopy), or run the script without --opt-level.".format(
            *script_line(), method, level
        )
    )


def inner_step(optimizer, made_at, outer, level):
    """Return the error that the inner optimizer of another one steps outside of that one's ``step``."""
    return AmpError(
        f"{type(optimizer).__name__} of {made_at} steps on the float32 weights of {type(outer).__name__}, outside of "
        f"its step(), so opt level {level} would not round them into the model. Call "
        f"{type(outer).__name__}.step(closure), or use --opt-level O0, O1 or O4, which have no half weights."
    )
