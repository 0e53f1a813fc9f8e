"""MMCV's decorators for methods of modules: ``auto_fp16`` and ``force_fp32``.

A decorated method reads ``fp16_enabled`` of its module at each call; where that is missing or false, nothing is cast.
"""

import functools
import inspect

import torch

from ..errors import AmpTypeError
from ..nested import BYTES, cast_floating
from . import session_access


def auto_fp16(apply_to=None, out_fp32=False, supported_types=(torch.nn.Module,)):
    """Decorate a method: its float32 arguments are cast to half, and functions called in it are cast as at O1.

    Args:
        apply_to: names of the arguments to cast, given by position or by keyword; None means all of them. Defaults
            are not cast. A name that the method does not have is ignored, as in MMCV.
        out_fp32: cast half tensors in the output to float32.
        supported_types: a class, or a tuple of classes, whose methods may be decorated.

    Raises:
        TypeError: at a call, if the first argument is of none of these types.
    """

    def decorate(method):
        def run(session, dtypes, args, kwargs):
            args, kwargs = arguments.cast(args, kwargs, dtypes.low, (dtypes.high,))
            with session.process_casts.region():
                output = method(*args, **kwargs)
            return cast_floating(output, dtypes.high, _narrower(dtypes.high)) if out_fp32 else output

        arguments = _CastArguments(method, apply_to)
        return _decorated("auto_fp16", method, _types(supported_types), run)

    return decorate


def force_fp32(apply_to=None, out_fp16=False):
    """Decorate a method: its half arguments are cast to float32, and functions called in it are not cast.

    Args:
        apply_to: as for ``auto_fp16``.
        out_fp16: cast float32 tensors in the output to half.

    Raises:
        TypeError: at a call, if the first argument is no module.
    """

    def decorate(method):
        def run(session, dtypes, args, kwargs):
            args, kwargs = arguments.cast(args, kwargs, dtypes.high, _narrower(dtypes.high))
            with session.process_casts.paused():
                output = method(*args, **kwargs)
            return cast_floating(output, dtypes.low, (dtypes.high,)) if out_fp16 else output

        arguments = _CastArguments(method, apply_to)
        return _decorated("force_fp32", method, (torch.nn.Module,), run)

    return decorate


def _decorated(decorator, method, types, run):
    @functools.wraps(method)
    def decorated(*args, **kwargs):
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
        session = session_access.session()
        dtypes = session_access.dtypes(session)
        return method(*args, **kwargs) if dtypes is None else run(session, dtypes, args, kwargs)

    return decorated


class _CastArguments:
    """Casts the arguments of a method that ``apply_to`` names."""

    def __init__(self, method, apply_to):
        self._names = inspect.getfullargspec(method).args
        self._apply_to = apply_to if apply_to is None else frozenset(_names(apply_to))

    def cast(self, args, kwargs, dtype, sources):
        """Return positional arguments (the module first) and keyword arguments, those in ``apply_to`` cast."""
        # Arguments in *args have no names: they are cast where all are.
        names = self._names + [None] * (len(args) - len(self._names))
        cast = [
            cast_floating(value, dtype, sources) if self._applies_to(name) else value
            for name, value in zip(names[1:], args[1:])
        ]
        named = {
            name: cast_floating(value, dtype, sources) if self._applies_to(name) else value
            for name, value in kwargs.items()
        }
        return (args[0],) + tuple(cast), named

    def _applies_to(self, name):
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
