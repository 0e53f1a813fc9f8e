"""Predict the size of an optimizer's state with one step of a new optimizer on a small tensor.

The sizes of that tensor are distinct primes, so the shapes of the state show which of the param's sizes they depend on:
all of them (Adam), one each (Adafactor), none (a step count). The user's optimizer is not changed.
"""

import inspect
from contextlib import nullcontext

import torch

from ...errors import AmpError
from ...support.nested import tensors_in
from .storages import element_size

_PRIMES = (7, 11, 13, 17, 19, 23, 29, 31)


class StateSizes:
    """Bytes of optimizer state per param, after one step.

    Args:
        make_optimizer: a function: list of params -> optimizer; an optimizer class is one.
        device: where the trial step runs; not the meta device, whose tensors have no values.
    """

    def __init__(self, make_optimizer, device="cpu"):
        self._make_optimizer = make_optimizer
        self._device = device
        self._state_shapes = {}  # (dimensions, dtype) -> [(shape, bytes per element)]

    def bytes_of(self, shape, dtype):
        """Return the bytes of state of a param of this shape and dtype.

        Raises:
            AmpError: the optimizer cannot be created, or cannot step.
        """
        key = len(shape), dtype
        if key not in self._state_shapes:
            self._state_shapes[key] = self._trial_step(*key)
        sizes = dict(zip(_PRIMES, shape))
        sizes.setdefault(torch.Size(_PRIMES[: len(shape)]).numel(), torch.Size(shape).numel())  # flattened
        states = self._state_shapes[key]
        return sum(size * torch.Size([sizes.get(each, each) for each in state]).numel() for state, size in states)

    def _trial_step(self, dimensions, dtype):
        if dimensions > len(_PRIMES):
            raise AmpError(f"A param has {dimensions} dimensions; estimates go up to {len(_PRIMES)}.")
        # Half may have no kernels here, so float32 is tried too; some optimizers need sparse gradients.
        attempts = [(dtype, False), (dtype, True)]
        attempts += [(torch.float32, False)] if element_size(dtype) < 4 else []
        errors = []
        for tried, is_sparse in attempts:
            param = torch.nn.Parameter(torch.ones(_PRIMES[:dimensions], dtype=tried, device=self._device))
            try:
                with self._as_default_device():
                    found = self._state(param, is_sparse)
            except AmpError:
                raise
            except Exception as error:  # optimizers may raise anything; the first error is reported
                errors.append(error)
                continue
            return [(tuple(each.shape), element_size(dtype if each.dtype is tried else each.dtype)) for each in found]
        raise AmpError(
            f"The optimizer could not step on a {dtype} tensor of {dimensions} dimensions: {errors[0]}"
        ) from errors[0]

    def _as_default_device(self):
        """Return a context for tensors that the optimizer creates without a device; the caller's may be meta."""
        device = torch.device(self._device)
        return device if hasattr(device, "__enter__") else nullcontext()  # torch before 2.0 has no default device

    def _state(self, param, is_sparse):
        optimizer = self._new_optimizer([param])
        grad = torch.ones_like(param)
        param.grad = grad.to_sparse() if is_sparse else grad

        def closure():
            return grad.sum()

        optimizer.step(*([closure] if needs_closure(optimizer) else []))
        return list(tensors_in(dict(optimizer.state)))

    def _new_optimizer(self, params):
        try:
            return self._make_optimizer(params)
        except Exception as error:
            raise AmpError(
                f"The optimizer could not be created from a list of params: {error}. If it needs more arguments, pass "
                "a function, such as lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)."
            ) from error


def needs_closure(optimizer):
    """Return whether an optimizer, such as LBFGS, cannot step without a function that computes the loss."""
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is parameter.empty


def same_optimizer_factory(optimizer, group):
    """Return a function that creates optimizers with the class and options of one param group of ``optimizer``.

    Raises:
        AmpError: it has no ``defaults`` from which to create another one.
    """
    optimizer = getattr(optimizer, "optim", optimizer)  # LARC wraps the optimizer that has the state
    kind, defaults = type(optimizer), getattr(optimizer, "defaults", None)
    if defaults is None:
        raise AmpError(f"{kind.__name__} has no `defaults`, so another optimizer like it cannot be created.")
    accepted = inspect.signature(kind.__init__).parameters
    accepts_any = any(each.kind is each.VAR_KEYWORD for each in accepted.values())
    options = {name: value for name, value in defaults.items() if accepts_any or name in accepted}
    group_options = {name: group[name] for name in defaults if name in group}
    return lambda params: kind([dict(group_options, params=params)], **options)
