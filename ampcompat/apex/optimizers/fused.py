"""What Apex's optimizers have in common.

Owns: ``FusedOptimizer``: batches of params that are updated together, the step count of a group, state dicts.
Must not touch: formulas, which are ``multi_tensor.updates``.
The surprise: state is kept and updates are computed in float32 at least, for half params too; ``load_state_dict`` keeps
it so, where torch's would round it to the params' dtype. A step that is handed ``found_inf`` skips itself on the
device; from then on the count of steps is a tensor there, and a number again in state dicts.
"""

import itertools
from typing import Dict, List, NamedTuple, Optional

import torch

from ...errors import AmpError
from ...parts import tensors
from ...tables import torch_facts
from ..multi_tensor import lists
from .scaling import UNSCALED, handed_over

#: Where a group keeps its count of steps, and a param its float32 copy.
STEP, MASTER = "step", "master_param"


class Batch(NamedTuple):
    """Params of one device and dtype that have gradients; lists as long as ``params``.

    ``weights`` and ``grads`` are in the dtype to compute in; ``weights`` is ``params`` where that is their own.
    ``state`` holds a list per name. ``skip`` is what ``multi_tensor.updates`` has under this name.
    """

    params: List[torch.Tensor]
    weights: List[torch.Tensor]
    grads: List[torch.Tensor]
    state: Dict[str, List[torch.Tensor]]
    skip: Optional[torch.Tensor]

    @property
    def rows(self):
        """The lists in the order in which the formulas take them."""
        return (self.weights, self.grads) + tuple(self.state.values())


class FusedOptimizer(torch.optim.Optimizer):
    """Base of the optimizers: a subclass names its state and says what a step does to a batch.

    Args:
        params: as for every optimizer of torch.
        defaults: the options of a param group.
        set_grad_none: whether ``zero_grad`` sets gradients to None.
        attributes: options that are no group's, as Apex has them; they are copied and pickled with the optimizer.
    """

    #: The names of a param's state that have the param's shape and begin at 0.
    state_names = ()
    #: Whether half params get float32 copies that are kept.
    master_weights = False
    #: What the step that runs now was told.
    _scaling = UNSCALED

    def __init__(self, params, defaults, set_grad_none, **attributes):
        self._own = dict(attributes, set_grad_none=set_grad_none)
        vars(self).update(self._own)
        super().__init__(params, defaults)

    def __getstate__(self):
        own = {name: getattr(self, name) for name in self._own}
        return dict(super().__getstate__(), _own=self._own, **own)

    @property
    def _step_supports_amp_scaling(self):
        """Whether a step takes ``found_inf`` and ``grad_scale`` on the device, as amp and torch's GradScaler ask."""
        devices = {param.device.type for group in self.param_groups for param in group["params"]}
        return all(torch_facts.has_flagged_sgd(device) for device in devices)

    @property
    def _dummy_overflow_buf(self):
        """A flag that is not set, for those who call functions of ``amp_C`` with this optimizer's params."""
        return torch.zeros(1, dtype=torch.int32, device=self.param_groups[0]["params"][0].device)

    def zero_grad(self, set_to_none=True):
        """Clear the gradients: set them to None, or to 0 if ``set_to_none`` or ``set_grad_none`` is false."""
        clear_gradients(self.param_groups, set_to_none and self.set_grad_none)

    def step(self, closure=None):
        """Step, and return the loss that ``closure``, if there is one, computed before."""
        loss = evaluated(closure)
        self._step_under(handed_over(self))
        return loss

    def _step_under(self, scaling):
        """Step on gradients as ``scaling``, a ``Scaling``, says they are."""
        if scaling.skip is not None and not self._step_supports_amp_scaling and scaling.is_skip():
            return
        self._scaling = scaling
        try:
            with torch.no_grad():
                self._update()
        finally:
            del self._scaling

    def _update(self):
        for group in self.param_groups:
            self._advance(group)
            for batch in self._batches(group["params"], self.state_names):
                self._update_batch(group, batch)
                self._finish(batch)

    def _update_batch(self, group, batch):
        raise NotImplementedError("a subclass says what a step does")

    def _advance(self, group):
        """Count a step of a group, on the device if that is where it may be skipped."""
        if not group["params"]:
            return
        count, skip = group.get(STEP, 0), self._scaling.skip
        if skip is not None or isinstance(count, torch.Tensor):
            count = on_device(count, group)
            group[STEP] = count + 1.0 if skip is None else count + (1.0 - skip.to(count.device))
        else:
            group[STEP] = int(count) + 1

    @staticmethod
    def _numbers(group, batch):
        """Return what the formulas of Adam's kind take beside lists, by name."""
        count = group[STEP]
        return {
            "lr": group["lr"],
            "betas": group["betas"],
            "eps": group["eps"],
            "step": count.to(batch.weights[0]) if isinstance(count, torch.Tensor) else count,
            "bias_correction": group["bias_correction"],
            "decay": group["weight_decay"],
            "skip": batch.skip,
        }

    # -- batches -------------------------------------------------------------------------------------------------------

    def _batches(self, params, names):
        """Return those params that have gradients, in batches, with their state of these names; it begins at 0."""
        alike = {}
        for param in params:
            grad = self._gradient(param)
            if grad is None or not param.numel():
                continue
            if grad.is_sparse:
                raise AmpError(
                    "{} does not take sparse gradients; torch.optim.SparseAdam and SGD do.".format(type(self).__name__)
                )
            alike.setdefault((param.device, param.dtype, grad.dtype), []).append(param)
        return [self._batch(each, names) for each in alike.values()]

    def _gradient(self, param):
        """Return what a param is to be updated with; None: it is left out."""
        return param.grad

    def _batch(self, params, names):
        dtype = lists.wide_dtype(params[0].dtype)
        state = {name: [self._slot(param, name, dtype) for param in params] for name in names}
        models = state[names[0]] if names else None
        given = [self._gradient(param) for param in params]
        grads = self._scaling.unscaled(widened(given, dtype, models), given)
        if params[0].dtype != dtype and self._keeps_master(params[0]):
            weights = [self._master(param, dtype) for param in params]
        else:
            weights = widened(params, dtype, models)
        return Batch(params, weights, grads, state, self._scaling.skip_on(params[0].device))

    def _slot(self, param, name, dtype):
        state = self.state[param]
        if state.get(name) is None:
            state[name] = torch.zeros_like(param.detach(), dtype=dtype)
        return state[name]

    def _keeps_master(self, param):
        """Return whether a half param gets a float32 copy that is kept."""
        return self.master_weights

    def _master(self, param, dtype):
        state = self.state[param]
        if MASTER not in state:
            state[MASTER] = param.detach().to(dtype)
        return state[MASTER]

    def _finish(self, batch):
        if batch.weights is not batch.params:
            tensors.copy_(batch.params, batch.weights)

    # -- state dicts ---------------------------------------------------------------------------------------------------

    def state_dict(self):
        """Return the state dict; counts of steps are numbers there, which waits for the device."""
        found = super().state_dict()
        for group in found["param_groups"]:
            if isinstance(group.get(STEP), torch.Tensor) and not getattr(self, "capturable", False):
                group[STEP] = int(group[STEP].item())
        return found

    def load_state_dict(self, state_dict):
        """Load a state dict, that of torch's own optimizer of the kind included; what it holds in float32 stays so."""
        super().load_state_dict(state_dict)
        saved = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = itertools.chain.from_iterable(group["params"] for group in self.param_groups)
        for key, param in zip(saved, own):
            for name, value in state_dict["state"].get(key, {}).items():
                if isinstance(value, torch.Tensor) and value.is_floating_point() and name != STEP:
                    dtype = lists.wide_dtype(param.dtype)
                    self.state[param][name] = value.detach().to(device=param.device, dtype=dtype).clone()

        for group in self.param_groups:
            self._complete(group)

    def _complete(self, group):
        """Add what a group of torch's own optimizer lacks; torch counts steps in the state of each param."""
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
    for alike in tensors.grouped([grad for grad in grads if not grad.is_sparse]):
        lists.zero_(alike)
    for grad in grads:
        if grad.is_sparse:
            grad.zero_()


def widened(alike, dtype, models=None):
    """Return ``alike`` itself if it is of ``dtype``, else copies in that dtype.

    ``models``: tensors of that dtype and those shapes, with which one operation makes all the copies.
    """
    if alike[0].dtype == dtype:
        return alike
    if models is not None:
        return tensors.widened(alike, models)[0]
    return [tensor.to(dtype) for tensor in alike]


def evaluated(closure):
    """Return the loss of a closure, computed with gradients; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def refuse_amsgrad(amsgrad, name):
    """Raise if the AMSGrad variant is asked for, which Apex never had."""
    if amsgrad:
        raise AmpError("{} has no AMSGrad variant; torch.optim.Adam(..., amsgrad=True) has.".format(name))


#: Options that make no sense below 0.
NOT_NEGATIVE = ("lr", "eps", "weight_decay", "momentum")


def checked(**options):
    """Return the options of a group; raise ``ValueError`` for one that is negative. Tensors are not read."""
    for name in NOT_NEGATIVE:
        value = options.get(name, 0.0)
        if not isinstance(value, torch.Tensor) and value < 0.0:
            raise ValueError("{} must not be negative: {}".format(name, value))
    return options


def on_device(number, group):
    """Return a number as a float32 tensor of shape () on the group's device; one that is there already stays itself."""
    device = group["params"][0].device
    if isinstance(number, torch.Tensor):
        return number.to(device=device, dtype=torch.float32).reshape(())
    return torch.full((), float(number), dtype=torch.float32, device=device)


