"""``FusedOptimizer``, the base class of Apex's optimizers: batches of params, step counts of groups, and state dicts.

State is stored and updates are computed in at least float32, even for half params; ``load_state_dict`` does not round
it to the params' dtype as torch's does. A step that gets ``found_inf`` is skipped on the device. From then on, the step
count is a tensor on the device; state dicts contain it as a number.

The caller of ``step`` may provide the gradients' scale, and whether they contain inf or nan (``StepScaling``): torch's
GradScaler and amp set these on the optimizer. Only ``is_overflow`` reads them from the device.
"""

import itertools
from typing import Dict, List, NamedTuple, Optional

import torch

from ...errors import AmpError
from ...support import tensor_lists
from ...support.torch_compat import features
from ...support.torch_compat.thread_blocks import grad_enabled
from ..multi_tensor import foreach_ops


class StepScaling:
    """The overflow flag of gradients and the factor that unscales them.

    Args:
        found_inf: a tensor of one element, not 0 if the step must be skipped; or None.
        inv_scale: the factor that unscales the gradients: a number, a tensor of one element, or None.
        in_place: whether the gradients themselves are multiplied, as torch's fused optimizers do under GradScaler.
    """

    def __init__(self, found_inf=None, inv_scale=None, in_place=False):
        self.in_place = in_place
        # Kernels compare the flag with 1, but sums of flags may be passed too.
        self.found_inf = None if found_inf is None else (found_inf.detach() != 0).to(torch.float32).reshape(())
        self.inv_scale = inv_scale.detach().reshape(()) if isinstance(inv_scale, torch.Tensor) else inv_scale

    def is_overflow(self):
        """Return whether the step must be skipped, and drop the flag; synchronizes with the device."""
        found_inf, self.found_inf = self.found_inf, None
        return found_inf is not None and bool(found_inf.item())

    def divided_by(self, scale):
        """Return the ``StepScaling`` of gradients that are ``scale`` times as large."""
        if not isinstance(scale, torch.Tensor) and scale == 1.0:
            return self
        return StepScaling(self.found_inf, (1.0 if self.inv_scale is None else self.inv_scale) / scale)

    def found_inf_on(self, device):
        """Return the flag on a device, or None."""
        return None if self.found_inf is None else self.found_inf.to(device)

    def unscaled(self, grads, param_grads):
        """Return gradients times the factor.

        ``grads`` are ``param_grads`` or wider copies of them; ``param_grads`` are modified only if ``in_place``.
        """
        if self.inv_scale is None:
            return grads
        if grads is param_grads and not self.in_place:
            return foreach_ops.scaled(grads, self.inv_scale)
        self._multiply(grads)
        if self.in_place and grads is not param_grads:
            self._multiply(param_grads)
        return grads

    def _multiply(self, grads):
        factor = self.inv_scale
        foreach_ops.scale_(grads, factor.to(grads[0]) if isinstance(factor, torch.Tensor) else factor)

    def unscale_skipped_(self, grads):
        """Unscale the dense gradients of a skipped step."""
        if self.inv_scale is not None and self.in_place:
            for group in tensor_lists.grouped([grad for grad in grads if not grad.is_sparse]):
                self._multiply(group)


UNSCALED = StepScaling()


def step_scaling(optimizer, grad_scaler=None):
    """Return the ``StepScaling`` that the caller of ``step`` has set on the optimizer, or that of ``grad_scaler``."""
    if grad_scaler is None:
        found_inf, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    else:
        flags = list(grad_scaler._check_inf_per_device(optimizer).values())
        found_inf = torch.stack([flag.to(flags[0].device) for flag in flags]).max() if flags else None
        scale = grad_scaler._get_scale_async()
    if found_inf is None and scale is None:
        return UNSCALED
    return StepScaling(found_inf, None if scale is None else 1.0 / scale, in_place=True)


#: The keys of a group's step count and of a param's float32 copy.
STEP, MASTER = "step", "master_param"


class Batch(NamedTuple):
    """Params of one device and dtype that have gradients; all lists are as long as ``params``.

    ``weights`` and ``grads`` are in the dtype to compute in; ``weights`` is ``params`` if they have it. ``state`` has a
    list per name. ``found_inf`` is described in ``multi_tensor.updates``.
    """

    params: List[torch.Tensor]
    weights: List[torch.Tensor]
    grads: List[torch.Tensor]
    state: Dict[str, List[torch.Tensor]]
    found_inf: Optional[torch.Tensor]

    @property
    def lists(self):
        """The lists in the order of the formulas' arguments."""
        return (self.weights, self.grads) + tuple(self.state.values())


class FusedOptimizer(torch.optim.Optimizer):
    """Base class of the optimizers: a subclass lists its state and defines the update of a batch.

    ``attributes`` are options that are not in param groups, as in Apex; they are copied and pickled with the optimizer.
    """

    #: The names of state tensors that have the param's shape and are initialized with 0.
    state_names = ()
    #: Whether the optimizer keeps float32 copies of half params; whether learning rates and step counts are tensors.
    master_weights = capturable = False
    #: The ``StepScaling`` of the current step.
    _scaling = UNSCALED

    def __init__(self, params, defaults, set_grad_none, amsgrad=False, **attributes):
        if amsgrad:
            name = type(self).__name__
            raise AmpError(f"{name} has no AMSGrad variant; torch.optim.Adam(..., amsgrad=True) has.")
        for name in ("lr", "eps", "weight_decay", "momentum"):
            value = defaults.get(name)
            if value is not None and not isinstance(value, torch.Tensor) and value < 0.0:
                raise ValueError(f"{name} must not be negative: {value}")
        self._attributes = dict(attributes, set_grad_none=set_grad_none)
        vars(self).update(self._attributes)
        super().__init__(params, defaults)

    def __getstate__(self):
        attributes = {name: getattr(self, name) for name in self._attributes}
        return dict(super().__getstate__(), _attributes=self._attributes, **attributes)

    @property
    def _step_supports_amp_scaling(self):
        """Whether a step accepts ``found_inf`` and ``grad_scale`` on the device; read by amp and torch's GradScaler."""
        devices = {param.device.type for group in self.param_groups for param in group["params"]}
        return all(features.has_flagged_sgd(device) for device in devices)

    @property
    def _dummy_overflow_buf(self):
        """A flag that is not set, for calls of ``amp_C`` functions with this optimizer's params."""
        return torch.zeros(1, dtype=torch.int32, device=self.param_groups[0]["params"][0].device)

    def zero_grad(self, set_to_none=True):
        """Clear the gradients: set them to None, or to 0 if ``set_to_none`` or ``set_grad_none`` is false."""
        clear_gradients(self.param_groups, set_to_none and self.set_grad_none)

    def step(self, closure=None, **kwargs):
        """Take a step; return the loss that ``closure`` computed before it, or None without a closure.

        ``grad_scaler=``: a ``torch.cuda.amp.GradScaler``, if the gradients are still scaled by it. It is not in the
        signature, because torch's GradScaler would then warn and pass itself instead of its flag.
        """
        grad_scaler = kwargs.pop("grad_scaler", None)
        if kwargs:
            raise TypeError(f"step() got an unexpected keyword argument {sorted(kwargs)[0]!r}")
        loss = evaluate_closure(closure)
        self._step_with(step_scaling(self, grad_scaler))
        return loss

    def _step_with(self, scaling):
        """Step with gradients in the state described by ``scaling``, a ``StepScaling``."""
        if scaling.found_inf is not None and not self._step_supports_amp_scaling and scaling.is_overflow():
            with grad_enabled(False):
                params = [param for group in self.param_groups for param in group["params"]]
                scaling.unscale_skipped_([param.grad for param in params if param.grad is not None])
            return
        self._scaling = scaling
        try:
            with grad_enabled(False):
                self._update()
        finally:
            del self._scaling

    def _update(self):
        for group in self.param_groups:
            self._count_step(group)
            for batch in self._batches(group["params"], self.state_names):
                self._apply(group, batch)

    def _apply(self, group, batch, *arguments):
        """Update a batch, and write the result to its params; the arguments are those of ``_update_batch``."""
        self._update_batch(group, batch, *arguments)
        foreach_ops.write_back([batch.params], [batch.weights])

    def _update_batch(self, group, batch):
        raise NotImplementedError("a subclass says what a step does")

    def _count_step(self, group):
        """Count a step of a group, on the device if the step may be skipped there."""
        if not group["params"]:
            return
        count, found_inf = group.get(STEP, 0), self._scaling.found_inf
        if found_inf is None and not isinstance(count, torch.Tensor) and not self.capturable:
            group[STEP] = int(count) + 1
            return
        group[STEP] = count = on_device(count, group)
        count.add_(1.0 if found_inf is None else 1.0 - found_inf.to(count.device))  # a captured graph does it again

    @staticmethod
    def _adam_options(group, batch):
        """Return the keyword arguments of Adam-like formulas."""
        count = group[STEP]
        return {
            "lr": group["lr"],
            "betas": group["betas"],
            "eps": group["eps"],
            "step": count.to(batch.weights[0]) if isinstance(count, torch.Tensor) else count,
            "bias_correction": group["bias_correction"],
            "decay": group["weight_decay"],
            "found_inf": batch.found_inf,
        }

    # -- batches -------------------------------------------------------------------------------------------------------

    def _batches(self, params, names):
        """Return the params that have gradients, in batches, with their state of these names, created as 0."""
        pairs = [(param, self._grad(param)) for param in params]
        pairs = [(param, grad) for param, grad in pairs if grad is not None]
        if any([grad.is_sparse for _, grad in pairs]):
            raise AmpError(f"{type(self).__name__} does not take sparse gradients; torch.optim.SparseAdam and SGD do.")
        lists = list(zip(*pairs)) or [(), ()]
        return [self._batch(*split, names) for _, split in foreach_ops.split_by_dtype(lists)]

    def _grad(self, param):
        """Return the gradient for a param; None: the param is not updated."""
        return param.grad

    def _batch(self, params, param_grads, names):
        dtype = foreach_ops.compute_dtype(params[0].dtype)
        state = {name: self._state_of(params, name, torch.zeros_like, dtype=dtype) for name in names}
        like = state[names[0]] if names else None
        grads = self._scaling.unscaled(foreach_ops.upcast(param_grads, dtype, like), param_grads)
        if params[0].dtype != dtype and self._keeps_master(params[0]):
            weights = self._state_of(params, MASTER, torch.Tensor.to, dtype)
        else:
            weights = foreach_ops.upcast(params, dtype, like)
        return Batch(params, weights, grads, state, self._scaling.found_inf_on(params[0].device))

    def _state_of(self, params, name, make, *args, **kwargs):
        """Return the state tensors of params, made from the param where there is none."""
        for param in params:
            if self.state[param].get(name) is None:
                self.state[param][name] = make(param.detach(), *args, **kwargs)
        return [self.state[param][name] for param in params]

    def _keeps_master(self, param):
        """Return whether the optimizer keeps a float32 copy of a half param."""
        return self.master_weights

    # -- state dicts ---------------------------------------------------------------------------------------------------

    def state_dict(self):
        """Return the state dict; step counts are numbers in it, which synchronizes with the device."""
        found = super().state_dict()
        for group in found["param_groups"]:
            if isinstance(group.get(STEP), torch.Tensor) and not self.capturable:
                group[STEP] = int(group[STEP].item())
        return found

    def load_state_dict(self, state_dict):
        """Load a state dict, including that of torch's corresponding optimizer; float32 state stays float32."""
        super().load_state_dict(state_dict)
        saved = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = itertools.chain.from_iterable(group["params"] for group in self.param_groups)
        for key, param in zip(saved, own):
            for name, value in state_dict["state"].get(key, {}).items():
                if isinstance(value, torch.Tensor) and value.is_floating_point() and name != STEP:
                    dtype = foreach_ops.compute_dtype(param.dtype)
                    self.state[param][name] = value.detach().to(device=param.device, dtype=dtype).clone()

        for group in self.param_groups:
            self._add_missing_options(group)

    def _add_missing_options(self, group):
        """Add missing entries to a group of torch's optimizer, which counts steps in the state of each param."""
        for name, value in self.defaults.items():
            group.setdefault(name, value)
        counts = [self.state[param].pop(STEP) for param in group["params"] if STEP in self.state.get(param, {})]
        if counts:
            group.setdefault(STEP, int(max(counts)))


def clear_gradients(groups, to_none):
    """Set the gradients of groups of params to None, or to 0."""
    grads = []
    for group in groups:
        for param in group["params"]:
            if to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad = param.grad.detach()
                grads.append(param.grad)
    for group in tensor_lists.grouped([grad for grad in grads if not grad.is_sparse]):
        foreach_ops.zero_(group)
    for grad in grads:
        if grad.is_sparse:
            grad.zero_()


def evaluate_closure(closure):
    """Return the loss of a closure, computed with gradients; None without a closure."""
    if closure is None:
        return None
    with grad_enabled(True):
        return closure()


def on_device(number, group):
    """Return a number as a float32 tensor of shape () on the group's device; not copied if it is already there."""
    device = group["params"][0].device
    if isinstance(number, torch.Tensor):
        return number.to(device=device, dtype=torch.float32).reshape(())
    return torch.full((), float(number), dtype=torch.float32, device=device)
