"""MMCV's decorators for methods, ``auto_fp16`` and ``force_fp32``, and its functions that convert models.

A decorated method reads ``fp16_enabled`` of its module at each call; if that is missing or false, nothing is cast.
"""

import functools
import inspect
from itertools import zip_longest

import torch

from ..engine.models import forward_conversion
from ..engine.session.process_casts import ProcessCasts
from ..errors import AmpTypeError
from ..opt_levels import HALF
from ..support.containers import BYTES, cast_floating
from ..support.observer_interface import Observer
from ..support.patching import PatchStack
from ..support.torch_compat import features
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


def cast_tensor_type(inputs, src_type, dst_type):
    """Return a tensor, or nested containers of any depth and type, with the tensors of one dtype cast to another.

    Modules, strings, arrays and tensors of other dtypes are returned as they are.
    """
    return cast_floating(inputs, dst_type, (src_type,))


def patch_forward_method(func, src_type, dst_type, convert_output=True):
    """Return ``func`` with its ``src_type`` arguments cast to ``dst_type``, and its output cast back.

    ``convert_output=False`` leaves the output as it is.
    """

    @functools.wraps(func)
    def converted(*args, **kwargs):
        args, kwargs = cast_tensor_type((args, kwargs), src_type, dst_type)
        output = func(*args, **kwargs)
        return cast_tensor_type(output, dst_type, src_type) if convert_output else output

    return converted


def wrap_fp16_model(model):
    """Set ``fp16_enabled`` on the modules of ``model`` that have such an attribute.

    Weights are not cast; see the package's docstring. ``Fp16OptimizerHook`` calls this. Without the hook, for example
    in evaluation, decorated methods need nothing else.
    """
    _check_module("wrap_fp16_model", model)
    for module in model.modules():
        if hasattr(module, "fp16_enabled"):
            module.fp16_enabled = True


def patch_norm_fp32(module):
    """Convert the batch norms and group norms of a half model back to float32; their inputs and outputs stay half.

    The module, usually one that ``.half()`` was called on, is changed in place and returned.
    """
    _check_module("patch_norm_fp32", module)
    session = session_access.session()
    pair = session_access.dtypes(session) or HALF
    norm_conversions = _norm_conversions(session)
    for norm in module.modules():
        if isinstance(norm, (torch.nn.modules.batchnorm._BatchNorm, torch.nn.GroupNorm)):
            norm.to(pair.high)
            if getattr(norm, forward_conversion.MARK, None) is None and _needs_conversion(norm, pair):
                # The module is marked instead of getting a closure as its ``forward``, so that copies and pickles work.
                conversion = forward_conversion.ForwardConversion(
                    type(norm), pair.high, pair.low, token=norm_conversions.token
                )
                forward_conversion.mark(norm, conversion, norm_conversions.patches)
    return module


class _NormConversions(Observer):
    """The conversions around ``forward`` of norms, removed when the session closes."""

    def __init__(self):
        self.token = forward_conversion.Token()
        self.patches = PatchStack()

    def closed(self, session):
        self.token.close()
        self.patches.undo()


def _norm_conversions(session):
    """Return a session's ``_NormConversions``; if it is disabled, new ones, which exist as long as their modules."""
    if not session.enabled:
        return _NormConversions()
    for observer in session.observers:
        if isinstance(observer, _NormConversions):
            return observer
    session.observers.append(_NormConversions())
    return session.observers[-1]


def _needs_conversion(norm, pair):
    """Return whether torch has no kernel for this norm that accepts a half input with float32 weights."""
    if isinstance(norm, torch.nn.GroupNorm):
        return True
    owned = list(norm.parameters()) + list(norm.buffers())
    return bool(owned) and not features.has_mixed_batch_norm(owned[0].device, *pair)


def _check_module(caller, module):
    if not isinstance(module, torch.nn.Module):
        raise AmpTypeError(f"{caller} expected a torch.nn.Module, not {type(module).__name__}.")
