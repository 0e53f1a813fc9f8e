"""The script's own ``GradScaler`` under a forced level: one loss scale, and one decision to skip a step.

``scale`` multiplies by the scale of the level, which ``get_scale`` returns; it changes only in ``update``, as scripts
expect. Backward passes detect that a loss was multiplied (``script_backward.SCALE``), and unscale. ``step`` is the
optimizer's own, which is skipped after an overflow.
"""

import functools
import weakref

import torch

from ...engine.loss_scaling.overflow_check import OverflowCheck
from ...engine.optimizers.optimizer_record import record_of
from ...engine.optimizers.step_or_skip import amp_step
from ...observers.steps import grad_scaler_class
from ...support.tensor_lists import has_non_finite, is_shard
from .script_backward import mark_scaled, times
from .trained_modules import params_of

_READY, _UNSCALED, _STEPPED = "ready", "unscaled", "stepped"


class ScriptScalers:
    """Replaces the methods of ``GradScaler``, except for scalers that the script has disabled.

    Args:
        forced: the ``ForcedLevel``.
    """

    def __init__(self, forced):
        self._forced = forced
        self._alive = weakref.WeakSet()  # enabled scalers
        self._loaded = {}  # the state of the script's scaler when models were prepared, or that it has loaded since
        self._published = {}  # "scale": what ``get_scale`` returns; "unskipped": the count of good steps at that time
        self._stages = weakref.WeakKeyDictionary()  # optimizer -> the methods called since ``update``

    def patch(self, patches):
        """Replace the methods until ``patches`` is undone."""
        scaler = grad_scaler_class()
        patches.wrap(scaler, "__init__", self._made)
        for name in ("scale", "unscale_", "step", "update", "get_scale", "state_dict", "load_state_dict"):
            patches.wrap(scaler, name, functools.partial(self._delegated, getattr(self, "_" + name)))

    def _made(self, make, scaler, *args, **kwargs):
        make(scaler, *args, **kwargs)
        if scaler.is_enabled():
            self._alive.add(scaler)

    def _delegated(self, replacement, original, scaler, *args, **kwargs):
        if self._forced.scaler is None or not scaler.is_enabled():
            return original(scaler, *args, **kwargs)
        return replacement(original, scaler, *args, **kwargs)

    # -- when models are prepared --------------------------------------------------------------------------------------

    def initial_options(self):
        """Return the options of ``amp.initialize`` that the script passes to its ``GradScaler``, as a dict."""
        state = self._loaded = next((scaler.state_dict() for scaler in self._alive), {})
        names = {"scale": "init_scale", "growth_factor": "growth_factor", "backoff_factor": "backoff_factor"}
        names["growth_interval"] = "growth_interval"
        return {option: state[name] for name, option in names.items() if name in state}

    def prepared(self):
        """Note that models are prepared: the level's scale continues from the state that the script has loaded."""
        self._load(self._loaded)

    def _load(self, state):
        self._loaded, scaler = dict(state), self._forced.scaler
        if scaler.dynamic and state:
            scaler.load_state_dict({"loss_scale": state["scale"], "unskipped": state["_growth_tracker"]})
        self._publish()

    def _publish(self):
        scaler = self._forced.scaler
        self._published = {"scale": scaler.scale_now(), "unskipped": scaler.good_steps_now()}

    # -- what is called instead of torch's methods ---------------------------------------------------------------------

    def _scale(self, original, scaler, outputs):
        if not isinstance(outputs, torch.Tensor):
            return type(outputs)([self._scale(original, scaler, each) for each in outputs])
        scale = self._published["scale"]
        scaled = times(outputs, scale)
        if scaled is not outputs:
            mark_scaled(scaled, outputs, scale)
        return scaled

    def _unscale_(self, original, scaler, optimizer):
        stage = self._stages.get(optimizer, _READY)
        if stage == _UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if stage == _STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        self._stages[optimizer] = _UNSCALED
        self._check_written(optimizer)
        self._tell_found_inf(scaler, optimizer)

    def _check_written(self, optimizer):
        """Skip the step also if the script has made a gradient inf or nan since the pass, as by its own all-reduce."""
        record, own = record_of(optimizer), self._forced.scaler
        if record is None or not own.dynamic or record.skips.is_next_skipped():
            return
        record.gradients.prepare_step()
        gradients = [param.grad for param in params_of(optimizer) if param.grad is not None]
        if any(map(is_shard, gradients)) or not has_non_finite(gradients):  # all ranks check shards after the pass
            return
        own.load_state_dict({"loss_scale": self._published["scale"], "unskipped": self._published["unskipped"]})
        own.advance(True)
        check = OverflowCheck(own, [])
        check.result = True
        record.skips.add(check, 0)
        check.run_callbacks()

    def _tell_found_inf(self, scaler, optimizer):
        """Store the result of the overflow check where scripts and trainers read it."""
        record = record_of(optimizer)
        skips = record is not None and record.skips.is_next_skipped()
        device = optimizer.param_groups[0]["params"][0].device
        found = {device: torch.full((), float(skips), dtype=torch.float32, device=device)}
        scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found

    def _step(self, original, scaler, optimizer, *args, **kwargs):
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if self._stages.get(optimizer) == _STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if self._stages.get(optimizer) != _UNSCALED:
            self._check_written(optimizer)
            self._tell_found_inf(scaler, optimizer)
        self._stages[optimizer] = _STEPPED
        record = record_of(optimizer)
        if record is not None and record.skips.is_next_skipped():  # trainers see that their ``step`` is not called
            return amp_step(optimizer, *args, **kwargs)
        return optimizer.step(*args, **kwargs)

    def _update(self, original, scaler, new_scale=None):
        if new_scale is not None and self._forced.scaler.dynamic:
            state = {"loss_scale": float(new_scale), "unskipped": self._published["unskipped"]}
            self._forced.scaler.load_state_dict(state)
        self._publish()
        self._stages.clear()
        scaler._per_optimizer_states.clear()

    def _get_scale(self, original, scaler):
        return float(self._published["scale"])

    def _state_dict(self, original, scaler):
        own = self._forced.scaler
        state = dict(original(scaler), **self._loaded)  # at a level with a static scale the script's own continues
        if own.dynamic:
            state.update(scale=own.loss_scale(), _growth_tracker=own.state_dict()["unskipped"])
        return state

    def _load_state_dict(self, original, scaler, state_dict):
        original(scaler, state_dict)
        self._load(state_dict)
