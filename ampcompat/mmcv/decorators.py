"""The decorators of MMCV: methods of modules that compute in half, or insist on float32.

Owns: ``auto_fp16``, ``force_fp32``.
Must not touch: torch's functions and flags; the session's backend does.
The surprise: a decorated method asks its own module, at each call. Where ``fp16_enabled`` is missing or false it is a
plain method.
"""

import functools
import inspect

import torch

from ..backends.casts import BYTES
from ..errors import AmpTypeError
from ..parts.casting import cast_floating
from . import opening


def auto_fp16(apply_to=None, out_fp32=False, supported_types=(torch.nn.Module,)):
    """Decorate a method: float32 tensors among its arguments become half, and functions in it are cast as at O1.

    Args:
        apply_to: names of the arguments to cast, given by position or by keyword; None means all of them. Defaults
            are not cast. A name that the method does not have means nothing, as in MMCV.
        out_fp32: half tensors in what it returns are cast to float32.
        supported_types: a class, or a tuple of classes, whose methods may be decorated.

    Raises:
        TypeError: at a call, if the first argument is of none of these types.
    """

    def decorate(method):
        def run(found, dtypes, args, kwargs):
            args, kwargs = chosen.cast(args, kwargs, dtypes.low, (dtypes.high,))
            with found.process_casts.region():
                output = method(*args, **kwargs)
            return cast_floating(output, dtypes.high, _narrower(dtypes.high)) if out_fp32 else output

        chosen = _Chosen(method, apply_to)
        return _switched("auto_fp16", method, _types(supported_types), run)

    return decorate


def force_fp32(apply_to=None, out_fp16=False):
    """Decorate a method: half tensors among its arguments are cast to float32, and functions in it are not cast.

    Args:
        apply_to: as for ``auto_fp16``.
        out_fp16: float32 tensors in what it returns are cast to half.

    Raises:
        TypeError: at a call, if the first argument is no module.
    """

    def decorate(method):
        def run(found, dtypes, args, kwargs):
            args, kwargs = chosen.cast(args, kwargs, dtypes.high, _narrower(dtypes.high))
            with found.process_casts.paused():
                output = method(*args, **kwargs)
            return cast_floating(output, dtypes.low, (dtypes.high,)) if out_fp16 else output

        chosen = _Chosen(method, apply_to)
        return _switched("force_fp32", method, (torch.nn.Module,), run)

    return decorate


def _switched(decorator, method, types, run):
    @functools.wraps(method)
    def switched(*args, **kwargs):
        if not args or not isinstance(args[0], types):
            raise AmpTypeError(
                "@{} decorates methods of {}, and {} was called with {} as its first argument.".format(
                    decorator,
                    " and ".join(each.__name__ for each in types),
                    method.__qualname__,
                    "a {}".format(type(args[0]).__name__) if args else "nothing",
                )
            )
        if not getattr(args[0], "fp16_enabled", False):
            return method(*args, **kwargs)
        found = opening.session()
        dtypes = opening.dtypes(found)
        return method(*args, **kwargs) if dtypes is None else run(found, dtypes, args, kwargs)

    return switched


class _Chosen:
    """The arguments of a method that are cast."""

    def __init__(self, method, apply_to):
        self._names = inspect.getfullargspec(method).args
        self._apply_to = apply_to if apply_to is None else frozenset(_names(apply_to))

    def cast(self, args, kwargs, dtype, sources):
        """Return positional arguments (the module first) and keywords, the chosen ones cast."""
        # Arguments beyond the named ones, *args, have no names: they are cast where all are.
        names = self._names + [None] * (len(args) - len(self._names))
        cast = [
            cast_floating(value, dtype, sources) if self._is_chosen(name) else value
            for name, value in zip(names[1:], args[1:])
        ]
        named = {
            name: cast_floating(value, dtype, sources) if self._is_chosen(name) else value
            for name, value in kwargs.items()
        }
        return (args[0],) + tuple(cast), named

    def _is_chosen(self, name):
        return self._apply_to is None or name in self._apply_to


def _names(apply_to):
    names = [apply_to] if isinstance(apply_to, str) else list(apply_to)
    if not all(isinstance(name, str) for name in names):
        raise AmpTypeError("apply_to takes names of arguments, such as ('img',), not {!r}.".format(apply_to))
    return names


def _types(supported):
    types = supported if isinstance(supported, (tuple, list)) else (supported,)
    if not all(isinstance(each, type) for each in types):
        raise AmpTypeError("supported_types takes classes, not {!r}.".format(supported))
    return tuple(types)


@functools.lru_cache(maxsize=None)
def _narrower(dtype):
    return frozenset(each for each, size in BYTES.items() if size < BYTES[dtype])
