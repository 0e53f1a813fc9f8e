"""How large an optimizer's state is, found out by trying.

Owns: ``StateSizes``; ``maker_of``, which makes optimizers like one that is there.
Must not touch: the optimizer itself, its params and its state.
The surprise: an optimizer is never asked for its class. A new one steps once on a small tensor whose sizes are distinct
primes, and the sizes of its state say which of the param's sizes they follow: all of them (Adam), one each (Adafactor),
none (a count).
"""

import inspect

import torch

from ..errors import AmpError
from .storages import element_size, tensors_in

_PRIMES = (7, 11, 13, 17, 19, 23, 29, 31)


class StateSizes:
    """Bytes of state per param, after one step.

    Args:
        make: a function: list of params -> optimizer; a class of optimizers is one.
        device: where to try; not torch's meta device, whose tensors have no values to step on.
    """

    def __init__(self, make, device="cpu"):
        self._make = make
        self._device = device
        self._forms = {}  # (number of dimensions, dtype) -> [(sizes, bytes per element)]

    def of(self, shape, dtype):
        """Return the bytes of state of a param of this shape and dtype.

        Raises:
            AmpError: the optimizer cannot be made, or cannot step.
        """
        key = len(shape), dtype
        if key not in self._forms:
            self._forms[key] = self._try(*key)
        sizes = dict(zip(_PRIMES, shape))
        sizes.setdefault(_product(_PRIMES[: len(shape)]), _product(shape))  # flattened
        return sum(size * _product([sizes.get(each, each) for each in form]) for form, size in self._forms[key])

    def _try(self, dimensions, dtype):
        if dimensions > len(_PRIMES):
            raise AmpError("A param has {} dimensions; estimates go up to {}.".format(dimensions, len(_PRIMES)))
        # Where half has no kernels, the wide state tells; some optimizers want their gradients sparse.
        attempts = [(dtype, False), (dtype, True)]
        attempts += [(torch.float32, False)] if element_size(dtype) < 4 else []
        errors = []
        for tried, is_sparse in attempts:
            param = torch.nn.Parameter(torch.ones(_PRIMES[:dimensions], dtype=tried, device=self._device))
            try:
                found = self._state(param, is_sparse)
            except AmpError:
                raise
            except Exception as error:  # whatever a foreign optimizer raises; the first of them is told
                errors.append(error)
                continue
            return [(tuple(each.shape), element_size(dtype if each.dtype is tried else each.dtype)) for each in found]
        raise AmpError(
            "The optimizer could not step on a {} tensor of {} dimensions: {}".format(dtype, dimensions, errors[0])
        ) from errors[0]

    def _state(self, param, is_sparse):
        optimizer = self._made([param])
        grad = torch.ones_like(param)
        param.grad = grad.to_sparse() if is_sparse else grad

        def closure():
            return grad.sum()

        wants = inspect.signature(optimizer.step).parameters.get("closure")
        optimizer.step(*([closure] if wants is not None and wants.default is wants.empty else []))
        return list(tensors_in(dict(optimizer.state)))

    def _made(self, params):
        try:
            return self._make(params)
        except Exception as error:
            raise AmpError(
                "The optimizer could not be made of a list of params: {}. Where it needs more than that, pass a "
                "function, such as lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9).".format(error)
            ) from error


def maker_of(optimizer, group):
    """Return a function that makes optimizers with the class and options of ``optimizer`` and of one of its groups.

    Raises:
        AmpError: it keeps no ``defaults`` to make another one by.
    """
    optimizer = getattr(optimizer, "optim", optimizer)  # LARC and its like wrap the one that has state
    kind, defaults = type(optimizer), getattr(optimizer, "defaults", None)
    if defaults is None:
        raise AmpError("{} keeps no defaults, so no other one like it can be made.".format(kind.__name__))
    taken = inspect.signature(kind.__init__).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    options = {name: value for name, value in defaults.items() if takes_any or name in taken}
    stated = {name: group[name] for name in defaults if name in group}
    return lambda params: kind([dict(stated, params=params)], **options)


def _product(sizes):
    result = 1
    for size in sizes:
        result *= size
    return result
