"""Detect models that torch's ``fully_shard`` has sharded, and refuse the levels that would cast their weights.

Shards are views into buffers that torch owns, so their dtype must not change. ``fully_shard`` after ``initialize`` puts
new params into the model, which the optimizer does not have.
"""

from ..errors import AmpError

_INSTEAD = (
    "{}: at {} amp would cast weights that torch keeps in shards. Use opt_level {}, which leaves the weights alone, "
    "with an optimizer made from the sharded model: its float32 shards are the masters. For weights that are gathered "
    "in half, pass fully_shard mp_policy=MixedPrecisionPolicy(param_dtype={}) at that level."
)


def check_whole(model, policy):
    """Raise where ``policy`` casts weights that are sharded.

    Raises:
        AmpError: some params are DTensors, or a module went through ``fully_shard``.
    """
    if not policy.casts_model:
        return
    for name, module in model.named_modules():
        if "FSDPModule" in [base.__name__ for base in type(module).__mro__]:
            found = "fully_shard has sharded {}".format(repr(name) if name else "the model")
            raise AmpError(_instead(found, policy))
    for name, param in model.named_parameters():
        if _is_sharded(param):
            raise AmpError(_instead("param {} is a DTensor".format(name), policy))


def check_optimizers(model, optimizers, notices):
    """Print a notice if a model is sharded and no optimizer has shards, as when it was made before ``fully_shard``."""
    owned = [param for each in optimizers for group in each.param_groups for param in group["params"]]
    trainable = [param for param in model.parameters() if param.requires_grad]
    if any(map(_is_sharded, trainable)) and not any(map(_is_sharded, owned)):
        notices.say(
            "ampcompat: {} is sharded, and no optimizer that amp knows has shards: the model does not train. Call "
            " fully_shard first, make the optimizer from the sharded model, then call amp.initialize.".format(
                type(model).__name__
            )
        )


def _is_sharded(param):
    return hasattr(param, "placements") and hasattr(param, "device_mesh")


def _instead(found, policy):
    level = "O4" if policy.opt_level == "O5" else "O1"
    return _INSTEAD.format(found, policy.opt_level, level, policy.cast_model_type)
