"""MMCV's loss scaler: the forms in which a config gives it, and the forms in which checkpoints hold it.

Owns: ``LossScaler``, ``scaler_of``.
Must not touch: gradients and steps; ``parts.scaler`` has the automaton.
The surprise: a state dict has the keys of MMCV's own LossScaler and those of torch's GradScaler, which MMCV used from
torch 1.6 on. So every MMCV resumes from it, and ours from the checkpoint of any.
"""

from ..apex.fp16_utils.loss_scaler import has_non_finite
from ..errors import AmpError, AmpTypeError, AmpValueError
from ..parts import scaler
from ..tables.opt_levels import DYNAMIC, parse_scale

STATIC = "static"

#: The largest scale: beyond it float32 ends.
LARGEST_SCALE = 2.0**127

_OWN_KEYS = frozenset(["mode", "scale_factor", "scale_window"])
_TORCH_KEYS = {"growth_factor": "scale_factor", "growth_interval": "scale_window", "backoff_factor": "backoff_factor"}


class _Automaton(scaler.LossScaler):
    """The automaton, with MMCV's way to count: all iterations, and which of them was the last that overflowed."""

    iterations = 0
    last_overflow = -1

    def _advance(self, overflowed):
        super()._advance(overflowed)
        if overflowed:
            self.last_overflow = self.iterations
        self.iterations += 1


class LossScaler:
    """A loss scale: one that stays, or one that overflows halve and good iterations double.

    Args:
        init_scale: where it starts.
        mode: "dynamic" or "static".
        scale_factor: what it is multiplied by after ``scale_window`` good iterations, and divided by at an overflow.
        scale_window: good iterations in a row before it grows.
        backoff_factor: what it is multiplied by at an overflow instead.
        min_scale: it does not fall below this.

    Raises:
        ValueError, TypeError: a value that makes no sense, with the name of its argument.
    """

    def __init__(
        self, init_scale=2**32, mode=DYNAMIC, scale_factor=2.0, scale_window=1000, backoff_factor=None, min_scale=1.0
    ):
        if mode not in (DYNAMIC, STATIC):
            raise AmpValueError('mode must be "dynamic" or "static", not {!r}.'.format(mode))
        if not isinstance(scale_window, int) or scale_window < 1:
            raise AmpValueError("scale_window must be a whole number from 1 up, not {!r}.".format(scale_window))
        self.mode = mode
        self.scale_factor = parse_scale("scale_factor", scale_factor)
        self.scale_window = scale_window
        self.backoff_factor = parse_scale("backoff_factor", backoff_factor or 1.0 / self.scale_factor)
        self.min_scale = min_scale
        if self.scale_factor <= 1.0 or self.backoff_factor >= 1.0:
            raise AmpValueError(
                "A loss scale grows by more than 1 and backs off by less than 1, not by {:g} and {:g}.".format(
                    self.scale_factor, self.backoff_factor
                )
            )
        self.automaton = self._make_automaton(parse_scale("init_scale", init_scale))

    def _make_automaton(self, scale):
        return _Automaton(
            DYNAMIC if self.mode == DYNAMIC else scale,
            init_scale=scale,
            scale_window=self.scale_window,
            min_loss_scale=self.min_scale,
            max_loss_scale=LARGEST_SCALE,
            growth_factor=self.scale_factor,
            backoff_factor=self.backoff_factor,
            checks_static=True,
        )

    @property
    def loss_scale(self):
        """What losses are multiplied by now."""
        return self.automaton.loss_scale()

    @property
    def cur_scale(self):
        """The same, by the other name that MMCV has for it; it may be set."""
        return self.automaton.loss_scale()

    @cur_scale.setter
    def cur_scale(self, value):
        self.automaton._loss_scale = value

    def get_scale(self):
        """Return the same, as torch's GradScaler would."""
        return self.automaton.loss_scale()

    @property
    def cur_iter(self):
        """How many iterations it has seen."""
        self.automaton.settle()
        return self.automaton.iterations

    @property
    def last_overflow_iter(self):
        """Which of them was the last that overflowed; -1 for none."""
        self.automaton.settle()
        return self.automaton.last_overflow

    def has_overflow(self, params):
        """Return whether the gradient of a param holds inf or nan; a static scale does not look."""
        grads = [param.grad for param in params if param.grad is not None]
        return self.mode == DYNAMIC and has_non_finite(grads)

    def update_scale(self, overflow):
        """Take in one iteration."""
        if self.mode == DYNAMIC:
            self.automaton.settle()
            self.automaton._advance(bool(overflow))

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
            "_growth_tracker": self.automaton._unskipped,
        }

    def load_state_dict(self, state_dict):
        """Take over the state that this class, MMCV's LossScaler or torch's GradScaler saved.

        Raises:
            AmpError: the dict is of none of them.
        """
        group = self.automaton.process_group
        if {"cur_scale", "cur_iter", "mode", "last_overflow_iter", "scale_factor", "scale_window"} <= set(state_dict):
            names = ("mode", "scale_factor", "scale_window")
            scale, iterations, last = (state_dict[key] for key in ("cur_scale", "cur_iter", "last_overflow_iter"))
            options = {name: state_dict[name] for name in names}
            options["backoff_factor"] = state_dict.get("backoff_factor")
        elif {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"} <= set(state_dict):
            scale, iterations, last = state_dict["scale"], state_dict["_growth_tracker"], -1
            options = {own: state_dict[theirs] for theirs, own in _TORCH_KEYS.items()}
            options["mode"] = self.mode
        else:
            raise AmpError(
                "A loss scaler's state has the keys of MMCV's LossScaler (cur_scale, cur_iter, …) or of torch's "
                "GradScaler (scale, _growth_tracker, …), and this one has {}.".format(sorted(state_dict, key=str))
            )
        loaded = LossScaler(scale, min_scale=self.min_scale, **options)
        vars(self).update(vars(loaded))
        self.automaton.process_group = group
        self.automaton.iterations, self.automaton.last_overflow = iterations, last
        self.automaton._unskipped = (iterations - last - 1) % self.scale_window


def scaler_of(loss_scale):
    """Return the ``LossScaler`` that a hook's ``loss_scale`` asks for.

    Args:
        loss_scale: a number for a scale that stays; "dynamic", with the numbers of torch's GradScaler; or a dict with
            the arguments of ``LossScaler``, or with those of GradScaler.

    Raises:
        TypeError, ValueError: it is none of these, or a key of the dict is unknown; the message names it.
    """
    if loss_scale == DYNAMIC:
        return scaler_of({})
    if not isinstance(loss_scale, dict):
        if isinstance(loss_scale, (bool, list, tuple)) or loss_scale is None:
            raise AmpTypeError('loss_scale must be a number, "dynamic" or a dict, not {!r}.'.format(loss_scale))
        return LossScaler(parse_scale("loss_scale", loss_scale), mode=STATIC)
    unknown = set(loss_scale) - _OWN_KEYS - set(_TORCH_KEYS) - {"init_scale", "enabled"}
    if unknown:
        raise AmpValueError(
            "loss_scale has unknown keys {}: expected init_scale with {}, or with {}.".format(
                sorted(unknown), ", ".join(sorted(_OWN_KEYS)), ", ".join(sorted(_TORCH_KEYS) + ["enabled"])
            )
        )
    if not loss_scale.get("enabled", True):
        return LossScaler(1.0, mode=STATIC)
    options = {_TORCH_KEYS.get(key, key): value for key, value in loss_scale.items() if key != "enabled"}
    if _OWN_KEYS & set(loss_scale):
        return LossScaler(**options)
    return LossScaler(**dict({"init_scale": 2.0**16, "scale_window": 2000, "min_scale": None}, **options))
