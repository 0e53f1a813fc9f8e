"""What MMCV does to models by hand: the flag, norms in float32, casts around a ``forward``.

Owns: ``wrap_fp16_model``, ``patch_norm_fp32``, ``patch_forward_method``, ``cast_tensor_type``.
Must not touch: weights other than those of norms; the opt level says whether weights are cast.
The surprise: a norm's ``forward`` is not replaced by a closure. The module is marked, so that copies and pickles of
it work.
"""

import functools

import torch

from ..errors import AmpTypeError
from ..parts import forwards
from ..parts.casting import cast_floating
from ..tables import torch_facts
from ..tables.opt_levels import HALF
from . import opening


def cast_tensor_type(inputs, src_type, dst_type):
    """Return ``inputs`` with the tensors of one dtype cast to another; containers keep their types.

    Args:
        inputs: a tensor or nested containers, of any depth. Modules, strings, arrays and tensors of other dtypes pass.
        src_type, dst_type: the dtypes.
    """
    return cast_floating(inputs, dst_type, (src_type,))


def patch_forward_method(func, src_type, dst_type, convert_output=True):
    """Return ``func`` with its ``src_type`` arguments cast to ``dst_type``, and its output cast back.

    Args:
        func: any function, such as the ``forward`` of a module.
        src_type, dst_type: the dtypes.
        convert_output: False leaves the output as it is.
    """

    @functools.wraps(func)
    def converted(*args, **kwargs):
        args = [cast_tensor_type(value, src_type, dst_type) for value in args]
        kwargs = {name: cast_tensor_type(value, src_type, dst_type) for name, value in kwargs.items()}
        output = func(*args, **kwargs)
        return cast_tensor_type(output, dst_type, src_type) if convert_output else output

    return converted


def wrap_fp16_model(model):
    """Set ``fp16_enabled`` on the modules of ``model`` that have such an attribute.

    Weights stay as they are; see the package's docstring. ``Fp16OptimizerHook`` calls this; without the hook, as for
    evaluation, it is all that decorated methods need.
    """
    _check_module("wrap_fp16_model", model)
    for module in model.modules():
        if hasattr(module, "fp16_enabled"):
            module.fp16_enabled = True


def patch_norm_fp32(module):
    """Put the batch norms and group norms of a half model back into float32, taking half in and giving half out.

    Args:
        module: a module, usually one that ``.half()`` was called on; it is changed in place.

    Returns:
        The module.
    """
    _check_module("patch_norm_fp32", module)
    found = opening.session()
    pair = opening.dtypes(found) or HALF
    marks = opening.marks(found)
    for norm in module.modules():
        if isinstance(norm, (torch.nn.modules.batchnorm._BatchNorm, torch.nn.GroupNorm)):
            norm.to(pair.high)
            if getattr(norm, forwards.MARK, None) is None and _needs_casts(norm, pair):
                casts = forwards.ForwardCasts(type(norm), pair.high, pair.low, None, marks.token)
                forwards.mark(norm, casts, marks.patches)
    return module


def _needs_casts(norm, pair):
    """Return whether torch has no kernel for this norm that takes a half input with float32 weights."""
    if isinstance(norm, torch.nn.GroupNorm):
        return True
    owned = list(norm.parameters()) + list(norm.buffers())
    return bool(owned) and not torch_facts.has_mixed_batch_norm(owned[0].device, *pair)


def _check_module(caller, module):
    if not isinstance(module, torch.nn.Module):
        raise AmpTypeError("{} expected a torch.nn.Module, not {}.".format(caller, type(module).__name__))
