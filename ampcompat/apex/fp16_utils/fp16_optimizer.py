"""``FP16_Optimizer``: float32 master weights and a loss scale around any optimizer, as before ``amp.initialize``.

The caller casts the model itself (``network_to_half``, ``.half()``). Closures are supported. An overflow inside a
closure does not skip the step: the closure runs again with a smaller scale.

One iteration: ``zero_grad()``, ``backward(loss)`` instead of ``loss.backward()``, ``step()``. The gradients of half
    params stay scaled; their masters have the unscaled ones, overwritten by each ``update_master_grads()``.
"""

import torch

from ...engine.loss_scaling.loss_scaler import LossScaler
from ...engine.masters.master_sync import make_master, recast
from ...errors import AmpError, GradientOverflowError
from ...opt_levels import DYNAMIC, parse_scale
from ...support import tensor_lists
from ...support.notices import Notices
from ..contrib import clip_grad_norm_
from ..optimizers.fused import clear_gradients
from . import fp16util
from .emulation import emulate_modules_of
from .fp16util import dynamic_scaler_state

#: Consecutive overflows within one closure before an error: no scale helps if the loss is nan.
MAX_RETRIES = 50

_INNER, _MASTERS, _SCALER = "optimizer_state_dict", "fp32_from_fp16", "loss_scaler"


class FP16_Optimizer:
    """Wraps an optimizer of a model that has half params.

    Args:
        init_optimizer: the optimizer; its half params that require gradients are replaced by float32 masters.
        static_loss_scale: the factor for losses; with a static scale, no step is skipped.
        dynamic_loss_scale: whether the scale adapts to overflows instead.
        dynamic_loss_args: ``init_scale``, ``scale_factor``, ``scale_window`` and other arguments of ``LossScaler``.
        verbose: whether overflows are printed.
    """

    def __init__(
        self, init_optimizer, static_loss_scale=1.0, dynamic_loss_scale=False, dynamic_loss_args=None, verbose=True
    ):
        self.optimizer = init_optimizer
        self.verbose = verbose
        self.dynamic_loss_scale = bool(dynamic_loss_scale)
        scale = DYNAMIC if dynamic_loss_scale else parse_scale("static_loss_scale", static_loss_scale)
        self.loss_scaler = self._new_scaler(scale, (dynamic_loss_args or {}) if dynamic_loss_scale else {})
        self.overflow = False
        self.first_closure_call_this_step = True
        self._notices = Notices(1 if verbose else 0)
        self._grads_scale = None  # the scale of the current gradients of the half params
        self._float_grads_are_unscaled = False  # gradients of float32 params are already unscaled
        self.fp16_groups, self.fp32_from_fp16_groups, self.fp32_from_fp32_groups = [], [], []
        for group in init_optimizer.param_groups:
            self._make_masters(group)
        emulate_modules_of(_flatten_groups(self.fp16_groups), fp16util.dtypes())

    @staticmethod
    def _new_scaler(scale, options):
        return LossScaler(scale, **options)

    def _make_masters(self, group):
        """Replace the half params of a group by masters, and move and widen their state."""
        high = fp16util.dtypes().high
        half_params, masters, float_params = [], [], []
        for index, param in enumerate(group["params"]):
            if not param.requires_grad:
                continue
            if not tensor_lists.is_narrower(param, high):
                float_params.append(param)
                continue
            master = make_master(param, (), high)
            group["params"][index] = master
            if param in self.state:
                self.state[master] = self.state.pop(param)
            recast(self.state.get(master), master.shape, high)
            half_params.append(param)
            masters.append(master)
        self.fp16_groups.append(half_params)
        self.fp32_from_fp16_groups.append(masters)
        self.fp32_from_fp32_groups.append(float_params)

    # -- one iteration -------------------------------------------------------------------------------------------------

    def zero_grad(self, set_grads_to_None=False):
        """Clear the gradients of the params and of the masters."""
        self._grads_scale, self._float_grads_are_unscaled = None, False
        clear_gradients([{"params": group} for group in self.fp16_groups] + self.param_groups, set_grads_to_None)

    def backward(self, loss, update_master_grads=True, retain_graph=False):
        """Run backward from the scaled loss.

        Args:
            loss: a tensor of one element.
            update_master_grads: False for gradient accumulation, in all backward passes except the last before the
                step; gradients are summed.
            retain_graph: as for ``Tensor.backward``.
        """
        scale = self.loss_scale
        self._rescale_grads(scale)
        (loss.to(fp16util.dtypes().high) * scale).backward(retain_graph=retain_graph)
        if update_master_grads:
            self.update_master_grads()

    def update_master_grads(self):
        """Unscale the gradients into the masters, and record whether one was inf or nan."""
        self._rescale_grads(self.loss_scale)
        fp16util.model_grads_to_master_grads(*self._half_params_and_masters())
        grads = [param.grad for param in self._masters() if param.grad is not None]
        with torch.no_grad():
            self.loss_scaler.clear_overflow_state()
            self.loss_scaler.unscale_(tensor_lists.grouped(grads), self._grads_scale)
        self._float_grads_are_unscaled = True
        self.overflow = self.loss_scaler.update_scale()

    def _rescale_grads(self, scale):
        """Rescale gradients of earlier passes to the scale of the next one, so that they can be summed."""
        before, self._grads_scale = self._grads_scale or scale, scale
        float_params = self._grads_of(self.fp32_from_fp32_groups)
        with torch.no_grad():
            if self._float_grads_are_unscaled:
                tensor_lists.multiply_(tensor_lists.grouped(float_params), before)
                self._float_grads_are_unscaled = False
            if before != scale:
                tensor_lists.multiply_(
                    tensor_lists.grouped(float_params + self._grads_of(self.fp16_groups)), scale / before
                )

    def clip_master_grads(self, max_norm, norm_type=2):
        """Clip the masters' gradients by their joint norm and return it; after an overflow, only return -1."""
        if self.overflow:
            return -1
        return clip_grad_norm_(self._masters(), max_norm, norm_type)

    def step(self, closure=None):
        """Step unless the gradients overflowed, and copy the masters into the model.

        Args:
            closure: clears the gradients, calls ``backward`` of this object, returns the loss. The wrapped optimizer
                may call it any number of times.

        Raises:
            GradientOverflowError: every pass of a closure overflowed, whatever the scale.
        """
        if closure is not None:
            result = self._step_with_closure(closure)
        elif self.overflow:
            self._notices.say(f"Gradient overflow.  Skipping step, reducing loss scale to {self.loss_scale}")
            result = None
        else:
            result = self.optimizer.step()
        self._master_params_to_model_params()
        self._grads_scale, self._float_grads_are_unscaled = None, False  # the caller may clear the gradients itself
        return result

    def _step_with_closure(self, closure):
        def run_closure():
            if not self.first_closure_call_this_step:  # the optimizer moved the masters since the last call
                self._master_params_to_model_params()
            self.first_closure_call_this_step = False
            for _ in range(MAX_RETRIES):
                self.overflow = False
                loss = closure()
                if not self.overflow:
                    return loss
                self._notices.say(
                    f"Gradient overflow within the closure.  Running it again, reducing loss scale to {self.loss_scale}"
                )
            raise GradientOverflowError(
                f"The gradients of a closure overflowed {MAX_RETRIES} times in a row, down to a loss scale of "
                f"{self.loss_scale:g}: the loss or the weights are inf or nan, which no loss scale can correct."
            )

        try:
            return self.optimizer.step(run_closure)
        finally:
            self.first_closure_call_this_step = True

    def inspect_master_grad_data(self):
        """Return the gradients of the params of each group (None if a param has none); None after an overflow."""
        if self.overflow:
            self._notices.say("The gradients overflowed: there is nothing to inspect in the masters.")
            return None
        return [[None if p.grad is None else p.grad.detach() for p in group["params"]] for group in self.param_groups]

    def _masters(self):
        return _flatten_groups(self.fp32_from_fp16_groups) + _flatten_groups(self.fp32_from_fp32_groups)

    @staticmethod
    def _grads_of(groups):
        return [param.grad for param in _flatten_groups(groups) if param.grad is not None]

    def _master_params_to_model_params(self):
        fp16util.master_params_to_model_params(*self._half_params_and_masters())

    def _half_params_and_masters(self):
        return _flatten_groups(self.fp16_groups), _flatten_groups(self.fp32_from_fp16_groups)

    # -- attributes of the wrapped optimizer ---------------------------------------------------------------------------

    @property
    def loss_scale(self):
        """The current loss scale."""
        return self.loss_scaler.loss_scale()

    @loss_scale.setter
    def loss_scale(self, value):
        self.loss_scaler.set_loss_scale(value)

    @property
    def state(self):
        """The wrapped optimizer's state."""
        return self.optimizer.state

    @state.setter
    def state(self, value):
        self.optimizer.state = value

    @property
    def param_groups(self):
        """The wrapped optimizer's param groups, which contain the masters."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value):
        self.optimizer.param_groups = value

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self):
        """Return the scale, the wrapped optimizer's state dict and the masters."""
        return {
            _SCALER: self.loss_scaler.state_dict(),
            "dynamic_loss_scale": self.dynamic_loss_scale,
            "overflow": self.overflow,
            "first_closure_call_this_step": self.first_closure_call_this_step,
            _INNER: self.optimizer.state_dict(),
            _MASTERS: [[master.detach() for master in group] for group in self.fp32_from_fp16_groups],
        }

    def load_state_dict(self, state_dict):
        """Load a state dict of this class or of Apex, and round the masters into the model.

        A scale saved by the other kind of scaler (static or dynamic) is ignored.

        Raises:
            AmpError: it is not such a dict, or its masters do not match the params.
        """
        missing = [key for key in (_INNER, _MASTERS) if key not in state_dict]
        if missing:
            names = " and no ".join(map(repr, missing))
            raise AmpError(
                f"FP16_Optimizer.load_state_dict expects the result of its state_dict(); {names} is missing."
            )
        saved, masters = state_dict[_MASTERS], self.fp32_from_fp16_groups
        shapes = _shapes(saved), _shapes(masters)
        if shapes[0] != shapes[1]:
            raise AmpError("The checkpoint has masters of shapes {}, but this optimizer has {}.".format(*shapes))
        self.optimizer.load_state_dict(state_dict[_INNER])
        scaler_state = _scaler_state(state_dict.get(_SCALER))
        if scaler_state and bool(state_dict.get("dynamic_loss_scale")) == self.dynamic_loss_scale:
            self.loss_scaler.load_state_dict(scaler_state)
        self.overflow = bool(state_dict.get("overflow", False))
        self.first_closure_call_this_step = state_dict.get("first_closure_call_this_step", True)
        with torch.no_grad():
            for master, value in zip(_flatten_groups(masters), _flatten_groups(saved)):
                master.copy_(value)
        self._master_params_to_model_params()


def _flatten_groups(groups):
    return [param for group in groups for param in group]


def _shapes(groups):
    return [[tuple(param.shape) for param in group] for group in groups]


def _scaler_state(saved):
    """Return the values of a scaler in a checkpoint: a dict of this package, or a scaler object of Apex."""
    if saved is None or isinstance(saved, dict):
        return saved
    values = vars(saved)
    if "_loss_scale" in values:
        return {"loss_scale": values["_loss_scale"], "unskipped": values.get("_unskipped", 0)}
    return dynamic_scaler_state(values)
