"""MMCV's decorators for methods of modules: ``auto_fp16`` and ``force_fp32``.

A decorated method reads ``fp16_enabled`` of its module at each call; if that is missing or false, nothing is cast.
"""

import functools
import inspect
from itertools import zip_longest

import torch

from ..engine.session.process_casts import ProcessCasts
from ..errors import AmpTypeError
from ..support.nested import BYTES, cast_floating
from . import session_access


def auto_fp16(apply_to=None, out_fp32=False, supported_types=(torch.nn.Module,)):
    """Decorate a method: its float32 arguments are cast to half, and functions called in it cast as at O1.

    Args:
        apply_to: names of the arguments to cast, whether passed by position or by keyword; None means all of them.
            Defaults are not cast. A name that the method does not have is ignored, as in MMCV.
        out_fp32: cast half tensors in the output to float32.
        supported_types: a class, or a tuple of classes, whose methods may be decorated.

    Raises:
        TypeError: at a call, if the first argument is not of one of these types.
    """
    types, back = _types(supported_types), _to_float if out_fp32 else None
    return lambda method: _decorated("auto_fp16", method, types, apply_to, ProcessCasts.region, _to_half, back)


def force_fp32(apply_to=None, out_fp16=False):
    """Decorate a method: its half arguments are cast to float32, and functions called in it do not cast.

    Args:
        apply_to: as for ``auto_fp16``.
        out_fp16: cast float32 tensors in the output to half.

    Raises:
        TypeError: at a call, if the first argument is not a module.
    """
    types, back = (torch.nn.Module,), _to_half if out_fp16 else None
    return lambda method: _decorated("force_fp32", method, types, apply_to, ProcessCasts.paused, _to_float, back)


def _to_half(dtypes):
    """Return the arguments of ``cast_floating`` after the value."""
    return dtypes.low, (dtypes.high,)


def _to_float(dtypes):
    return dtypes.high, _narrower(dtypes.high)


def _decorated(decorator, method, types, apply_to, region, cast, cast_back):
    """Return ``method`` with its arguments cast, run in ``region``, and its output cast back."""
    names = inspect.getfullargspec(method).args
    apply_to = apply_to if apply_to is None else frozenset(_names(apply_to))

    @functools.wraps(method)
    def decorated(*args, **kwargs):
        if not args or not isinstance(args[0], types):
            raise AmpTypeError(
                "@{} decorates methods of {}, and {} was called with {} as its first argument.".format(
                    decorator,
                    " and ".join(each.__name__ for each in types),
                    method.__qualname__,
                    f"a {type(args[0]).__name__}" if args else "nothing",
                )
            )
        session = session_access.session() if getattr(args[0], "fp16_enabled", False) else None
        dtypes = None if session is None else session_access.dtypes(session)
        if dtypes is None:
            return method(*args, **kwargs)

        dtype, sources = cast(dtypes)

        def converted(name, value):
            return cast_floating(value, dtype, sources) if apply_to is None or name in apply_to else value

        # Arguments in *args have no names: they are cast if all arguments are.
        named = zip_longest(names[1 : len(args)], args[1:])
        args = args[:1] + tuple(converted(name, value) for name, value in named)
        kwargs = {name: converted(name, value) for name, value in kwargs.items()}
        with region(session.process_casts):
            output = method(*args, **kwargs)
        return output if cast_back is None else cast_floating(output, *cast_back(dtypes))

    return decorated


def _names(apply_to):
    names = [apply_to] if isinstance(apply_to, str) else list(apply_to)
    if not all(isinstance(name, str) for name in names):
        raise AmpTypeError(f"apply_to must be names of arguments, such as ('img',), not {apply_to!r}.")
    return names


def _types(supported):
    types = supported if isinstance(supported, (tuple, list)) else (supported,)
    if not all(isinstance(each, type) for each in types):
        raise AmpTypeError(f"supported_types must be classes, not {supported!r}.")
    return tuple(types)


@functools.lru_cache(maxsize=None)
def _narrower(dtype):
    return frozenset(each for each, size in BYTES.items() if size < BYTES[dtype])
