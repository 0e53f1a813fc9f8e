"""Gradients of backward passes without ``amp.scale_loss``: a step moves them from half params to their masters."""

from ..errors import AmpError
from ..loss_scaling.scaler import is_one
from .adapter import SLOT, Stage
from .untracked_gradients import are_replaced, is_watched


def catch_up(adapter):
    """Refresh an adapter's masters, and move gradients of backward passes without ``scale_loss`` to them.

    Raises:
        AmpError: the half params hold gradients of a ``scale_loss`` block that is still open.
    """
    adapter.refresh_masters()
    if not _has_half_gradients(adapter):
        return
    if _is_in_scaled_block(adapter):
        raise AmpError(
            "optimizer.step() was called inside of a with amp.scale_loss(...) block, where gradients are still scaled. "
            "Call it after the block."
        )
    _take_gradients(adapter)


def master_params(optimizer):
    """Yield the params in ``param_groups``, after refreshing new masters and moving unscaled half gradients to them."""
    adapter = getattr(optimizer, SLOT, None)
    if adapter is not None:
        adapter.refresh_masters(new_only=True)
        if _has_half_gradients(adapter) and not _is_in_scaled_block(adapter):
            _take_gradients(adapter)
    for group in optimizer.param_groups:
        yield from group["params"]


def _has_half_gradients(adapter):
    return adapter.stage is not Stage.SCALED and adapter.has_half_gradients()


def _is_in_scaled_block(adapter):
    return any(not is_one(block.scale) for block in adapter.open_blocks())


def _take_gradients(adapter):
    """Move half gradients to their masters, unless they are scaled gradients of another optimizer's pass."""
    adapter.forget_untracked(are_replaced)
    passes = adapter.callbacks.passes
    if adapter.untracked_scale is None and adapter.known_passes != passes.ended and not is_watched(adapter):
        adapter.leave_untracked(passes.scale)  # assumed; later passes are watched, so it is known then
    adapter.steps_plainly, adapter.watched_passes = True, float("-inf")
    if adapter.untracked_scale is None:
        is_stated = adapter.stage is Stage.DELAYED
        adapter.move_plain_gradients()
        if not is_stated:
            adapter.callbacks.notices.unscaled_gradients_used(adapter)
