"""The ``step`` of Apex's optimizers from before 2019, with gradients, output params and a scale as arguments."""

from ...errors import AmpTypeError
from ...support import tensor_lists
from ...support.torch_compat.thread_blocks import grad_enabled
from ..multi_tensor.functions import unflatten
from .fused import FusedOptimizer, evaluate_closure, step_scaling


class ExplicitGradientOptimizer(FusedOptimizer):
    """Base class of optimizers whose ``step`` gets the gradients as an argument."""

    _explicit_grads = {}  # id(param) -> gradient, during a step
    _grad_norms = None  # the norm of the unscaled gradients of each group, during a step

    def step(self, closure=None, grads=None, output_params=None, scale=1.0, grad_norms=None):
        """Take a step; return the loss that ``closure`` computed before it, or None without a closure.

        Args:
            closure: a function that clears the gradients, computes the loss, calls ``backward`` and returns the loss.
            grads: a list of gradients per group, or one list if there is one group. None instead of a gradient, or of
                all, means ``param.grad``. A list may be one vector with the gradients of all params of the group.
            output_params: likewise, tensors of another dtype that get the new weights.
            scale: the gradients are first divided by it.
            grad_norms: the norm of the scaled gradients of each group, for ``max_grad_norm``; computed if None.
        """
        loss = evaluate_closure(closure)
        self._explicit_grads = {
            id(param): grad
            for group, group_grads in zip(self.param_groups, self._by_group("grads", grads))
            for param, grad in zip(group["params"], group_grads)
            if grad is not None
        }
        self._grad_norms = None if grad_norms is None else [norm / scale for norm in grad_norms]
        try:
            self._step_with(step_scaling(self).divided_by(scale))
        finally:
            del self._explicit_grads, self._grad_norms
        with grad_enabled(False):
            for group, outputs in zip(self.param_groups, self._by_group("output_params", output_params)):
                if outputs:
                    tensor_lists.copy_(outputs, group["params"])
        return loss

    def _by_group(self, name, lists):
        """Return a list per group."""
        lists = [] if lists is None else list(lists)
        if lists and not isinstance(lists[0], (list, tuple)):
            lists = [lists]
        expected = [len(group["params"]) for group in self.param_groups]
        if len(lists) == len(expected):
            lists = [_parts(each, group["params"]) for each, group in zip(lists, self.param_groups)]
        lists = lists or [[] for _ in expected]
        if [len(each) for each in lists if each] != [length for each, length in zip(lists, expected) if each]:
            raise AmpTypeError(
                f"step({name}=...) expected lists as long as the param groups, {expected}, but got "
                f"{[len(each) for each in lists]}."
            )
        return lists

    def _grad(self, param):
        return self._explicit_grads.get(id(param), param.grad)


def _parts(tensors, params):
    """Split one vector into views with the shapes of the params, if that is what ``tensors`` are."""
    sizes = [param.numel() for param in params]
    is_vector = len(tensors) == 1 != len(params) and tensors[0] is not None and tensors[0].dim() == 1
    if not is_vector or tensors[0].numel() != sum(sizes):
        return tensors
    return unflatten(tensors[0], params)
