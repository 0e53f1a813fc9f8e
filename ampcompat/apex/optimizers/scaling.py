"""What a step is told of its gradients: that they are still multiplied, or that they hold inf or nan.

Owns: ``Scaling``, and how torch's GradScaler and amp hand it over.
Must not touch: weights, gradients.
The surprise: nothing is read from the device, unless somebody asks ``is_skip``.
"""

import torch

from ..multi_tensor import lists


class Scaling:
    """How gradients are to be taken.

    Args:
        skip: a tensor of one element that is not 0 where the step must change nothing, or None.
        factor: what the gradients are to be multiplied by: a number, a tensor of one element, or None.
    """

    def __init__(self, skip=None, factor=None):
        # Kernels ask whether the flag is exactly 1; sums of flags come as well.
        self.skip = None if skip is None else (skip.detach() != 0).to(torch.float32).reshape(())
        self.factor = factor.detach().reshape(()) if isinstance(factor, torch.Tensor) else factor

    def is_skip(self):
        """Return whether the step must change nothing, and stop saying so to the device; waits for it."""
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
        """Return gradients times the factor; ``given`` are the user's own tensors, which stay as they are."""
        if self.factor is None:
            return grads
        grads = lists.mul(grads, 1.0) if grads is given else grads
        factor = self.factor
        lists.scale_(grads, factor.to(grads[0]) if isinstance(factor, torch.Tensor) else factor)
        return grads


UNSCALED = Scaling()


def handed_over(optimizer, grad_scaler=None):
    """Return the ``Scaling`` that whoever calls ``optimizer.step`` has left on it, or that ``grad_scaler`` knows."""
    if grad_scaler is None:
        found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    else:
        flags = list(grad_scaler._check_inf_per_device(optimizer).values())
        found = torch.stack([flag.to(flags[0].device) for flag in flags]).max() if flags else None
        scale = grad_scaler._get_scale_async()
    if found is None and scale is None:
        return UNSCALED
    return Scaling(found, None if scale is None else 1.0 / scale)


def grad_scaler_in(told):
    """Return the ``grad_scaler`` among the keywords of a step; no other may be there.

    It is not in the signature: where it is, torch's GradScaler warns, and hands itself over instead of its flag.
    """
    unknown = sorted(set(told) - {"grad_scaler"})
    if unknown:
        raise TypeError("step() got an unexpected keyword argument {!r}".format(unknown[0]))
    return told.get("grad_scaler")
