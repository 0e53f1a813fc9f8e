"""The state of the gradients that a caller of ``step`` provides: their scale, and whether they contain inf or nan.

torch's GradScaler and amp set it on the optimizer. Only ``is_overflow`` reads from the device.
"""

import torch

from ...support import tensor_lists
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


def pop_grad_scaler(kwargs):
    """Return the ``grad_scaler`` among the keywords of a step; any other keyword is an error.

    It is not in the signature, because torch's GradScaler would then warn and pass itself instead of its flag.
    """
    grad_scaler = kwargs.pop("grad_scaler", None)
    if kwargs:
        raise TypeError(f"step() got an unexpected keyword argument {sorted(kwargs)[0]!r}")
    return grad_scaler
