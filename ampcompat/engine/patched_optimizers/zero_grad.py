"""``amp_zero_grad``, which replaces ``optimizer.zero_grad``; ``set_to_none`` for torch that lacks it."""

import inspect


def amp_zero_grad(self, *args, **kwargs):
    """Replaces ``optimizer.zero_grad``: clear the gradients of the model's half params and of their masters."""
    record = self._amp_stash.record
    zero_grad, default = record.methods["zero_grad"], record.methods.sets_to_none
    if default is not None:
        stated = kwargs["set_to_none"] if "set_to_none" in kwargs else args[0] if args else default
    else:  # torch before 1.7, and wrappers: no such argument, so it is implemented here
        stated = kwargs.pop("set_to_none", args[0] if args else False)
        args = ()
    record.follow_groups()
    record.gradients.clear(stated)  # first: half gradients that it leaves would be widened to be cleared
    result = zero_grad(*args, **kwargs)
    record.gradients.follow()
    if default is None and stated:
        for param in [param for group in self.param_groups for param in group["params"]]:
            param.grad = None
    return result


def default_of_set_to_none(zero_grad):
    """Return what an optimizer's ``zero_grad`` does by default, or None if it takes no such argument."""
    try:
        parameter = inspect.signature(zero_grad).parameters.get("set_to_none")
    except (TypeError, ValueError):
        return None
    return None if parameter is None else bool(parameter.default)
