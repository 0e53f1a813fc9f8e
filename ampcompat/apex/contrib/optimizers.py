"""The optimizers from before 2019: ``FusedAdam``, ``FusedSGD``, and the ``FP16_Optimizer`` that wraps them.

Master weights and unscaling of ``FP16_Optimizer`` are those of ``fp16_utils.FP16_Optimizer``. Unlike that class, this
one also skips steps with an overflow under a static loss scale. It wraps any optimizer, not only Apex's.
"""

import math

import torch

from ...engine.loss_scaling.loss_scaler import LossScaler
from ...engine.optimizers.apex_checkpoints import FLAT, INNER, MASTERS
from ...errors import AmpError
from .. import fp16_utils, optimizers
from ..fp16_utils.fp16util import dynamic_scaler_state
from ..multi_tensor.functions import flatten, unflatten
from ..optimizers import FusedLAMB
from ..optimizers.adam import LegacyFusedAdam
from ..optimizers.explicit_gradients import ExplicitGradientOptimizer

__all__ = ["FP16_Optimizer", "FusedAdam", "FusedLAMB", "FusedSGD"]

#: The masters in checkpoints of the class that was in ``apex.optimizers``.
LISTS = "fp32_groups"

FusedAdam = LegacyFusedAdam


class FusedSGD(ExplicitGradientOptimizer, optimizers.FusedSGD):
    """``apex.optimizers.FusedSGD`` with the ``step`` from before 2019, which gets the gradients."""


class FP16_Optimizer(fp16_utils.FP16_Optimizer):
    """Wraps an optimizer of a model that has half params; arguments as in ``apex.fp16_utils.FP16_Optimizer``.

    One iteration: one or more ``backward(loss)``, ``step()``, ``zero_grad()``. A dynamic scale starts at 2**16. It is
    halved after an overflow, but not below 1, and doubled after 1000 steps without overflow.
    """

    def __init__(
        self, init_optimizer, static_loss_scale=1.0, dynamic_loss_scale=False, dynamic_loss_args=None, verbose=True
    ):
        options = (static_loss_scale, dynamic_loss_scale, dynamic_loss_args, verbose)
        super().__init__(_as_legacy(init_optimizer), *options)
        self.cur_iter = 0  # calls of ``step``
        self._vectors = {}  # what ``fp32_groups_flat`` and ``fp16_groups_flat`` returned

    @staticmethod
    def _new_scaler(scale, options):
        defaults = {"scale_window": 1000, "min_loss_scale": 1.0, "checks_static": True}
        return LossScaler(scale, **dict(defaults, **options))

    @property
    def fp32_groups(self):
        """The params that the wrapped optimizer updates, a list per group."""
        return [group["params"] for group in self.param_groups]

    @property
    def fp32_groups_flat(self):
        """The params of each group as one vector, which shares their memory."""
        return self._flat("fp32_groups")

    @property
    def fp16_groups_flat(self):
        """The half params of each group as one vector, which shares their memory."""
        return self._flat("fp16_groups")

    def _flat(self, name):
        groups = getattr(self, name)
        if not _are_parts(groups, self._vectors.get(name, ())):
            self._vectors[name] = [_flatten(group) for group in groups]
        return self._vectors[name]

    # -- what subclasses with a ``step`` of their own call -------------------------------------------------------------

    def _compute_grad_norm(self, fp16_grads_flat, norm_type=2):
        """Return the norm of scaled gradients as a float, -1.0 if they overflowed."""
        norm = float(torch.norm(fp16_grads_flat.float(), norm_type))
        return norm if math.isfinite(norm) else -1.0

    def _update_scale(self, skip):
        """Count an iteration and update the scale; ``skip``: whether the gradients overflowed."""
        self.loss_scaler.sync()
        self.loss_scaler.advance(bool(skip))
        self.cur_iter += 1

    # -- the loss scale, by the names that subclasses save and load ----------------------------------------------------

    cur_scale = fp16_utils.FP16_Optimizer.loss_scale

    @property
    def last_overflow_iter(self):
        """``cur_iter`` at the last overflow, or at the step before the last growth of the scale; -1 at first."""
        return self.cur_iter - 1 - self.loss_scaler.good_steps

    @last_overflow_iter.setter
    def last_overflow_iter(self, value):
        self.loss_scaler.good_steps = (self.cur_iter - 1 - value) % self.scale_window

    @property
    def scale_factor(self):
        """The factor of a dynamic scale."""
        return self.loss_scaler.growth_factor

    @scale_factor.setter
    def scale_factor(self, value):
        self.loss_scaler.growth_factor, self.loss_scaler.backoff_factor = value, 1.0 / value

    @property
    def scale_window(self):
        """Steps without overflow before a dynamic scale grows."""
        return self.loss_scaler._scale_seq_len

    @scale_window.setter
    def scale_window(self, value):
        self.loss_scaler._scale_seq_len = value
        self.loss_scaler.good_steps %= value

    # -- one iteration -------------------------------------------------------------------------------------------------

    def zero_grad(self, set_grads_to_None=True):
        """Clear the gradients."""
        super().zero_grad(set_grads_to_None)

    def backward(self, loss, update_master_grads=False, retain_graph=False):
        """Run backward from the scaled loss; gradients are accumulated until ``step`` divides them by the scale."""
        super().backward(loss, update_master_grads, retain_graph)

    def step(self, closure=None):
        """Step unless the gradients overflowed, and copy the masters into the model."""
        if closure is not None:
            raise AmpError("This FP16_Optimizer does not accept a closure; that of apex.fp16_utils does.")
        self.update_master_grads()
        self.cur_iter += 1
        return super().step()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self):
        """Return the scale, the wrapped optimizer's state dict and the masters."""
        return dict(super().state_dict(), cur_scale=self.cur_scale, cur_iter=self.cur_iter)

    def load_state_dict(self, state_dict):
        """Load a state dict of this class, or of any version of Apex.

        Raises:
            AmpError: it is not such a dict, or its masters do not match the params.
        """
        if MASTERS not in state_dict and (FLAT in state_dict or LISTS in state_dict):
            state_dict = self._translated(state_dict)
        super().load_state_dict(state_dict)
        self.cur_iter = state_dict.get("cur_iter", 0)

    def _translated(self, saved):
        """Convert a checkpoint from before 2019 to the current layout."""
        inner, shapes = saved[INNER], [[param.shape for param in group] for group in self.fp32_groups]
        if FLAT in saved:
            inner, groups = _split_state(inner, shapes), list(map(_split, saved[FLAT], shapes))
        else:
            groups = saved[LISTS]
        if [[param.shape for param in group] for group in groups] != shapes:
            raise AmpError(f"The checkpoint has masters with different shapes than this optimizer, {shapes}.")
        # The old layout also has masters for params that stayed float32. Here these params are loaded directly.
        with torch.no_grad():
            for params, values in zip(self.fp32_groups, groups):
                for param, value in zip(params, values):
                    param.copy_(value)
        return {
            INNER: inner,
            MASTERS: self.fp32_from_fp16_groups,
            "dynamic_loss_scale": saved["dynamic_loss_scale"],
            "loss_scaler": dynamic_scaler_state(saved),
            "cur_iter": saved.get("cur_iter", 0),
        }


def _as_legacy(optimizer):
    """Return ``optimizer``; a new one of ``FusedAdam`` with default options is turned into a ``LegacyFusedAdam``."""
    is_new = type(optimizer) is optimizers.FusedAdam and not optimizer.state
    if is_new and optimizer.adam_w_mode and not (optimizer.capturable or optimizer.master_weights):
        optimizer.__class__ = LegacyFusedAdam
        del optimizer._attributes["adam_w_mode"], optimizer.adam_w_mode
        optimizer._attributes["eps_mode"] = optimizer.eps_mode = 1
        for options in [optimizer.defaults] + optimizer.param_groups:
            options.setdefault("max_grad_norm", 0.0)
    return optimizer


def _flatten(params):
    """Make the params views of one new vector, and return it."""
    vector = flatten([param.detach() for param in params])
    for param, part in zip(params, unflatten(vector, params)):
        param.data = part
    return vector


def _are_parts(groups, vectors):
    """Return whether ``vectors`` are the results of ``_flatten`` for the groups."""
    if len(groups) != len(vectors):
        return False
    parts = (zip(group, unflatten(vector, group)) for group, vector in zip(groups, vectors))
    return all(param.data_ptr() == part.data_ptr() for pairs in parts for param, part in pairs)


def _split(flat, shapes):
    """Split a flat tensor into tensors of the given shapes."""
    sizes = [shape.numel() for shape in shapes]
    if flat.numel() != sum(sizes):
        raise AmpError(f"The checkpoint has {flat.numel()} numbers, but this optimizer has {sum(sizes)}.")
    return [part.reshape(shape) for part, shape in zip(flat.detach().reshape(-1).split(sizes), shapes)]


def _split_state(inner, shapes):
    """Convert a state dict with one flat param per group to one with the separate params."""
    state, groups, first = {}, [], 0
    for group, each in zip(inner["param_groups"], shapes):
        keys = list(range(first, first + len(each)))
        first += len(each)
        groups.append(dict(group, params=keys))
        for name, value in inner["state"].get(group["params"][0], {}).items():
            whole = isinstance(value, torch.Tensor) and value.dim() > 0
            for key, part in zip(keys, _split(value, each) if whole else [value] * len(each)):
                state.setdefault(key, {})[name] = part
    return {"state": state, "param_groups": groups}
