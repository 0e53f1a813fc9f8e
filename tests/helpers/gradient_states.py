"""What gradients an optimizer holds between two steps: a model by hand in float64, of the contract alone.

Every number that the tests feed in is a small multiple of a power of two, so that each product and each sum is exact in
the dtype where amp computes it, and amp must agree to the last bit. There are no unscaled and rescaled numbers here:
a gradient is its true value, and beside it stands what a script may do with it.
"""

import torch

from helpers.networks import ScaleReference


def change(param, how):
    """Do what scripts do to the gradient of a param."""
    if how == "halve":
        param.grad.mul_(0.5)
    elif how == "halve a copy":
        param.grad = param.grad * 0.5
    elif how == "halve data":
        param.grad.data = param.grad.data * 0.5
    elif how == "mask":
        param.grad[..., 0] = 0.0
    elif how == "mask data":
        param.grad.data[..., 0] = 0.0
    elif how == "zero":
        param.grad.zero_()
    elif how == "add":
        param.grad.add_(2.0**-5)
    elif how == "add data":
        param.grad.data += 2.0**-5
    elif how == "replace":
        param.grad = torch.full_like(param.grad, 2.0**-5)
    elif how == "clip":
        torch.nn.utils.clip_grad_value_([param], 2.0**-6)
    else:
        param.grad = None


class StaticScale:
    """A loss scale that never changes, beside ``ScaleReference``."""

    unskipped = 0

    def __init__(self, scale):
        self.scale = scale

    def update(self, overflowed):
        """Take in one pass."""
        assert not overflowed


class DelayedPass:
    """Passes with ``delay_unscale`` of one loss, whose gradients are still scaled."""

    def __init__(self, loss, optimizers):
        self.loss, self.optimizers = loss, set(optimizers)
        self.overflowed = set()  # names of params whose gradients are inf or nan because of these passes


class HeldGradients:
    """Weights, gradients, loss scales and steps to skip.

    Args:
        weights: name -> float64 tensor.
        owned: optimizer -> names of its params. Names may belong to several optimizers.
        scales: a ``ScaleReference`` or a ``StaticScale`` per loss.
        half: the dtype in which the model's ``.grad`` is.
        stored: the dtype in which the optimizer's params are.
        stay_half: a block with a scale of 1 leaves gradients in half, as with ``store_param_remainders``.
    """

    def __init__(self, weights, owned, scales, half, stored, stay_half=False):
        self.weights, self.owned, self.scales = dict(weights), owned, scales
        self.half, self.stored, self.stay_half = half, stored, stay_half
        self.grads = {name: None for name in weights}
        self.forget()

    def forget(self):
        """Have no gradients, as after a copy."""
        self.grads = {name: None for name in self.grads}
        self.not_finite, self.foreign, self.skipped = set(), set(), set()
        self.delayed = []
        self.left_in_half = set()  # names of params whose gradients a pass with a scale of 1 has left in half
        self.unchecked = None  # (loss, optimizers) of a pass with ``delay_overflow_check`` that did overflow
        self.stepped = set()  # optimizers that stepped and did not clear their gradients yet
        self.changed_masters = set()  # optimizers whose masters' gradients the script has changed

    # -- what a script may ask -----------------------------------------------------------------------------------------

    @property
    def can_overflow(self):
        """Whether overflows are looked for."""
        return isinstance(self.scales[0], ScaleReference)

    def owners(self, name):
        """Return the optimizers that have a param."""
        return {optimizer for optimizer, names in self.owned.items() if name in names}

    def is_delayed(self, optimizer):
        """Return whether an optimizer holds scaled gradients of a delayed pass."""
        return any(optimizer in each.optimizers for each in self.delayed)

    def is_clean(self, optimizer):
        """Return whether a pass may follow: nothing is left over that only ``zero_grad`` may follow."""
        return optimizer not in self.stepped and not self.foreign.intersection(self.owned[optimizer])

    def is_readable(self, name):
        """Return whether ``.grad`` of the model's param has a meaning now: it is unscaled, finite and up to date."""
        owners = self.owners(name)
        return (
            name not in self.not_finite
            and self.unchecked is None
            and all(self.is_clean(each) and not self.is_delayed(each) for each in owners)
            and not owners & self.changed_masters
        )

    def is_exact(self, name, values=0.0):
        """Return whether the gradient, and with ``values`` added, is a number of ``half``: nothing can be rounded."""
        grad = torch.zeros(2, dtype=torch.float64) if self.grads[name] is None else self.grads[name]
        return all(torch.equal(each, each.to(self.half).double()) for each in (grad, grad + values))

    # -- passes --------------------------------------------------------------------------------------------------------

    def enter(self, loss, optimizers):
        """Begin a block: delayed gradients of other losses are unscaled and checked now."""
        self.changed_masters -= set(optimizers)
        self.left_in_half = {name for name in self.left_in_half if not self.owners(name) & set(optimizers)}
        for other in sorted({each.loss for each in self.delayed if each.optimizers & set(optimizers)} - {loss}):
            ended = [each for each in self.delayed if each.loss == other and each.optimizers & set(optimizers)]
            self._check(other, set().union(*[each.optimizers for each in ended]), ended)

    def add(self, gradients, overflows=False):
        """Add true gradients, name -> values."""
        for name, values in gradients.items():
            self.grads[name] = values if self.grads[name] is None else self.grads[name] + values
            if overflows:
                self.not_finite.add(name)

    def leave(self, loss, optimizers, touched, overflows):
        """End a block with an overflow check."""
        ended = [each for each in self.delayed if each.optimizers & set(optimizers)]
        self._check(loss, set(optimizers), ended, overflows or self.unchecked is not None)
        self.unchecked = None
        if self.stay_half and self.scales[loss].scale == 1.0:
            self.left_in_half.update(touched)
        self._leave_foreign(loss, optimizers, touched)

    def leave_unchecked(self, loss, optimizers, touched, overflows):
        """End a block with ``delay_overflow_check``."""
        if overflows:
            self.unchecked = loss, tuple(optimizers)
        self._leave_foreign(loss, optimizers, touched)

    def leave_delayed(self, loss, optimizers, touched, overflows):
        """End a block with ``delay_unscale``. A scale of 1 leaves nothing that is scaled."""
        if self.scales[loss].scale != 1.0:
            merged = DelayedPass(loss, optimizers)
            for each in [each for each in self.delayed if each.optimizers & merged.optimizers]:
                self.delayed.remove(each)
                merged.optimizers |= each.optimizers
                merged.overflowed |= each.overflowed
            merged.overflowed.update(touched if overflows else ())
            self.delayed.append(merged)
        else:
            self.left_in_half.update(touched)
        self._leave_foreign(loss, optimizers, touched)

    def _leave_foreign(self, loss, optimizers, touched):
        if self.scales[loss].scale != 1.0:
            self.foreign.update(name for name in touched if not self.owners(name) & set(optimizers))

    def _check(self, loss, optimizers, ended, overflows=False):
        self.delayed = [each for each in self.delayed if each not in ended]
        overflows = overflows or any(each.overflowed for each in ended)
        self.scales[loss].update(overflows)
        if overflows:
            self.skipped |= optimizers

    # -- what a script does to gradients, and steps --------------------------------------------------------------------

    def change(self, name, values):
        """Replace a gradient by values, or by None."""
        self.grads[name] = values

    def clear(self, names):
        """Clear gradients of these params."""
        for name in names:
            self.grads[name] = None
        self.not_finite -= set(names)
        self.foreign -= set(names)
        self.left_in_half -= set(names)
        for each in self.delayed:
            each.overflowed -= set(names)

    def zero_grad(self, optimizer):
        """Do as ``optimizer.zero_grad()``."""
        self.clear(self.owned[optimizer])
        for each in self.delayed:
            each.optimizers.discard(optimizer)
        self.delayed = [each for each in self.delayed if each.optimizers]
        self.stepped.discard(optimizer)
        self.changed_masters.discard(optimizer)

    def step(self, optimizer):
        """Do as SGD with a rate of 1; return whether the step was skipped."""
        self.stepped.add(optimizer)
        if optimizer in self.skipped:
            self.skipped.discard(optimizer)
            return True
        for name in self.owned[optimizer]:
            if self.grads[name] is not None:
                self.weights[name] = (self.weights[name] - self.grads[name]).to(self.stored).double()
        return False
