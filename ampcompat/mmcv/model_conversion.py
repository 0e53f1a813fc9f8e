"""MMCV's functions that convert models: the ``fp16_enabled`` flag, and norms in float32."""

import functools

import torch

from ..engine.models import forward_conversion
from ..errors import AmpTypeError
from ..opt_levels import HALF
from ..support.nested import cast_floating
from ..support.observer import Observer
from ..support.patching import PatchStack
from ..support.torch_compat import features
from . import session_access


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
        """Remove the conversions."""
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
