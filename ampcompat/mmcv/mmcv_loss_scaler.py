"""MMCV's ``LossScaler``, its state dict, and the ``loss_scale`` argument of configs.

The state dict has the keys of MMCV's own LossScaler and those of torch's GradScaler, which MMCV used from torch 1.6 on:
every MMCV can resume from it, and its checkpoints can be resumed here.
"""

from ..engine.loss_scaling import loss_scaler
from ..errors import AmpError, AmpTypeError, AmpValueError
from ..opt_levels import DYNAMIC, parse_scale
from ..support import tensor_lists

STATIC = "static"

#: The largest scale: the largest power of two in float32.
LARGEST_SCALE = 2.0**127

_MMCV_KEYS = frozenset(["mode", "scale_factor", "scale_window"])
_TORCH_KEYS = {"growth_factor": "scale_factor", "growth_interval": "scale_window", "backoff_factor": "backoff_factor"}


class _CountingScaler(loss_scaler.LossScaler):
    """The loss scaler of ``loss_scaling``, which also counts iterations as MMCV does."""

    iterations = 0
    last_overflow = -1

    def advance(self, overflowed):
        super().advance(overflowed)
        if overflowed:
            self.last_overflow = self.iterations
        self.iterations += 1


class LossScaler:
    """A static loss scale, or a dynamic one, which an overflow lowers and iterations without overflow raise.

    Args:
        mode: "dynamic" or "static".
        scale_factor: the scale is multiplied by it after ``scale_window`` iterations, and divided by it after an
            overflow.
        scale_window: number of consecutive iterations without overflow before the scale grows.
        backoff_factor: the scale is multiplied by it after an overflow, instead of divided by ``scale_factor``.

    Raises:
        ValueError, TypeError: an argument has a wrong value; the message says which.
    """

    def __init__(
        self, init_scale=2**32, mode=DYNAMIC, scale_factor=2.0, scale_window=1000, backoff_factor=None, min_scale=1.0
    ):
        if mode not in (DYNAMIC, STATIC):
            raise AmpValueError(f'mode must be "dynamic" or "static", not {mode!r}.')
        if not isinstance(scale_window, int) or scale_window < 1:
            raise AmpValueError(f"scale_window must be a whole number of at least 1, not {scale_window!r}.")
        self.mode = mode
        self.scale_factor = parse_scale("scale_factor", scale_factor)
        self.scale_window = scale_window
        self.backoff_factor = parse_scale("backoff_factor", backoff_factor or 1.0 / self.scale_factor)
        self.min_scale = min_scale
        if self.scale_factor <= 1.0 or self.backoff_factor >= 1.0:
            raise AmpValueError(
                f"The factors must be more than 1 for growth and less than 1 for backoff, not {self.scale_factor:g} "
                f"and {self.backoff_factor:g}."
            )
        scale = parse_scale("init_scale", init_scale)
        self.scaler = _CountingScaler(
            DYNAMIC if mode == DYNAMIC else scale,
            init_scale=scale,
            scale_window=scale_window,
            min_loss_scale=min_scale,
            max_loss_scale=LARGEST_SCALE,
            growth_factor=self.scale_factor,
            backoff_factor=self.backoff_factor,
            checks_static=True,
        )

    @property
    def cur_scale(self):
        """The current scale, which may be set."""
        return self.scaler.loss_scale()

    @cur_scale.setter
    def cur_scale(self, value):
        self.scaler.set_loss_scale(value)

    loss_scale = cur_scale

    def get_scale(self):
        """Return the current scale, as torch's GradScaler does."""
        return self.scaler.loss_scale()

    @property
    def cur_iter(self):
        """The number of iterations so far."""
        self.scaler.sync()
        return self.scaler.iterations

    @property
    def last_overflow_iter(self):
        """The last iteration with an overflow; -1 if there was none."""
        self.scaler.sync()
        return self.scaler.last_overflow

    def has_overflow(self, params):
        """Return whether the gradient of a param contains inf or nan; False with a static scale, without checking."""
        grads = [param.grad for param in params if param.grad is not None]
        return self.mode == DYNAMIC and tensor_lists.has_non_finite(grads)

    def update_scale(self, overflow):
        """Count one iteration and adjust a dynamic scale."""
        if self.mode == DYNAMIC:
            self.scaler.sync()
            self.scaler.advance(bool(overflow))

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self):
        """Return the state, in MMCV's keys and in those of torch's GradScaler."""
        scale = self.loss_scale
        return {
            "cur_scale": scale,
            "cur_iter": self.cur_iter,
            "mode": self.mode,
            "last_overflow_iter": self.last_overflow_iter,
            "scale_factor": self.scale_factor,
            "scale_window": self.scale_window,
            "scale": scale,
            "growth_factor": self.scale_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.scale_window,
            "_growth_tracker": self.scaler.good_steps,
        }

    def load_state_dict(self, state_dict):
        """Load a state dict of this class, MMCV's LossScaler or torch's GradScaler.

        Raises:
            AmpError: the dict does not have the keys of any of these.
        """
        group = self.scaler.process_group
        if {"cur_scale", "cur_iter", "mode", "last_overflow_iter", "scale_factor", "scale_window"} <= set(state_dict):
            names = ("mode", "scale_factor", "scale_window")
            scale, iterations, last = (state_dict[key] for key in ("cur_scale", "cur_iter", "last_overflow_iter"))
            options = {name: state_dict[name] for name in names}
            options["backoff_factor"] = state_dict.get("backoff_factor")
        elif {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"} <= set(state_dict):
            scale, iterations, last = state_dict["scale"], state_dict["_growth_tracker"], -1
            options = {name: state_dict[key] for key, name in _TORCH_KEYS.items()}
            options["mode"] = self.mode
        else:
            raise AmpError(
                "A loss scaler's state has the keys of MMCV's LossScaler (cur_scale, cur_iter, …) or of torch's "
                f"GradScaler (scale, _growth_tracker, …), but this one has {sorted(state_dict, key=str)}."
            )
        loaded = LossScaler(scale, min_scale=self.min_scale, **options)
        vars(self).update(vars(loaded))
        self.scaler.process_group = group
        self.scaler.iterations, self.scaler.last_overflow = iterations, last
        self.scaler.good_steps = (iterations - last - 1) % self.scale_window


def parse_loss_scale(loss_scale):
    """Return the ``LossScaler`` for a hook's ``loss_scale``.

    Args:
        loss_scale: a number for a static scale; "dynamic" for the defaults of torch's GradScaler; or a dict with the
            arguments of ``LossScaler`` or those of GradScaler.

    Raises:
        TypeError, ValueError: ``loss_scale`` is none of these, or the dict has an unknown key; the message says which.
    """
    if loss_scale == DYNAMIC:
        return parse_loss_scale({})
    if not isinstance(loss_scale, dict):
        if isinstance(loss_scale, (bool, list, tuple)) or loss_scale is None:
            raise AmpTypeError(f'loss_scale must be a number, "dynamic" or a dict, not {loss_scale!r}.')
        return LossScaler(parse_scale("loss_scale", loss_scale), mode=STATIC)
    unknown = set(loss_scale) - _MMCV_KEYS - set(_TORCH_KEYS) - {"init_scale", "enabled"}
    if unknown:
        raise AmpValueError(
            "loss_scale has unknown keys {}: expected init_scale with {}, or with {}.".format(
                sorted(unknown), ", ".join(sorted(_MMCV_KEYS)), ", ".join(sorted(_TORCH_KEYS) + ["enabled"])
            )
        )
    if not loss_scale.get("enabled", True):
        return LossScaler(1.0, mode=STATIC)
    options = {_TORCH_KEYS.get(key, key): value for key, value in loss_scale.items() if key != "enabled"}
    if _MMCV_KEYS & set(loss_scale):
        return LossScaler(**options)
    return LossScaler(**dict({"init_scale": 2.0**16, "scale_window": 2000, "min_scale": None}, **options))
