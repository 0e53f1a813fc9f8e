"""The state of the gradients of a step: whether they are still scaled, and whether they hold inf or nan.

torch's GradScaler and amp pass it to the optimizer. Only ``is_skip`` reads from the device.
"""

import torch

from ... import tensor_lists
from ..multi_tensor import foreach_ops


class Scaling:
    """Scale and overflow flag of gradients.

    Args:
        skip: a tensor of one element, not 0 if the step must be skipped; or None.
        factor: the factor that unscales the gradients: a number, a tensor of one element, or None.
        in_place: whether the gradients themselves are multiplied, as torch's fused optimizers do under GradScaler.
    """

    def __init__(self, skip=None, factor=None, in_place=False):
        self.in_place = in_place
        # Kernels compare the flag with 1, but sums of flags are passed too.
        self.skip = None if skip is None else (skip.detach() != 0).to(torch.float32).reshape(())
        self.factor = factor.detach().reshape(()) if isinstance(factor, torch.Tensor) else factor

    def is_skip(self):
        """Return whether the step must be skipped, and drop the flag; synchronizes with the device."""
        skip, self.skip = self.skip, None
        return skip is not None and bool(skip.item())

    def divided_by(self, scale):
        """Return the same for gradients that are ``scale`` times as large."""
        if not isinstance(scale, torch.Tensor) and scale == 1.0:
            return self
        return Scaling(self.skip, (1.0 if self.factor is None else self.factor) / scale)

    def skip_on(self, device):
        """Return the flag on a device, or None."""
        return None if self.skip is None else self.skip.to(device)

    def unscaled(self, grads, given):
        """Return gradients times the factor.

        ``given`` are the user's tensors, of which ``grads`` may be wider copies; modified only if ``in_place``.
        """
        if self.factor is None:
            return grads
        if grads is given and not self.in_place:
            grads = foreach_ops.mul(grads, 1.0)
        self._multiply(grads)
        if self.in_place and grads is not given:
            self._multiply(given)
        return grads

    def _multiply(self, grads):
        factor = self.factor
        foreach_ops.scale_(grads, factor.to(grads[0]) if isinstance(factor, torch.Tensor) else factor)

    def unscale_skipped_(self, grads):
        """Unscale the dense gradients of a skipped step."""
        if self.factor is not None and self.in_place:
            for alike in tensor_lists.grouped([grad for grad in grads if not grad.is_sparse]):
                self._multiply(alike)


UNSCALED = Scaling()


def handed_over(optimizer, grad_scaler=None):
    """Return the ``Scaling`` that the caller of ``optimizer.step`` has set on it, or that of ``grad_scaler``."""
    if grad_scaler is None:
        found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    else:
        flags = list(grad_scaler._check_inf_per_device(optimizer).values())
        found = torch.stack([flag.to(flags[0].device) for flag in flags]).max() if flags else None
        scale = grad_scaler._get_scale_async()
    if found is None and scale is None:
        return UNSCALED
    return Scaling(found, None if scale is None else 1.0 / scale, in_place=True)


def grad_scaler_in(told):
    """Return the ``grad_scaler`` among the keywords of a step; any other keyword is an error.

    It is not in the signature, because then torch's GradScaler warns and passes itself instead of its flag.
    """
    unknown = sorted(set(told) - {"grad_scaler"})
    if unknown:
        raise TypeError("step() got an unexpected keyword argument {!r}".format(unknown[0]))
    return told.get("grad_scaler")
