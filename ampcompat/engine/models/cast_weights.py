"""The cast of models' weights to half, and its undoing; which layers stay float32, and which models are refused.

A param stays the same object, so ties and references survive; only its data changes. ``ModelCast.originals`` holds the
float32 data until ``initialize`` has returned.
"""

import fnmatch
import weakref

import torch

from ...errors import AmpError, AmpTypeError
from ...support import tensor_lists
from ...support.tensor_lists import data_of, set_data, set_stored_gradient, stored_gradient
from ...support.torch_compat import features
from ..casting import emulated_half_arithmetic
from .state_dict import WIDE_BUFFERS, WideBuffers


class ModelCast:
    """The weights of some models, cast to another dtype.

    Args:
        dtype: the dtype of the weights from now on.
        high: the dtype to which kept weights are cast if they are narrower.
        patches: the ``PatchStack`` that casts every tensor back to its dtype: while this object exists with the data
            from before the cast, later with its data at that time.
    """

    def __init__(self, dtype, high, patches):
        self.dtype = dtype
        self.high = high
        self.originals = {}  # id(param) -> (its data, its gradient) before the cast
        self._patches = patches
        #: module -> [(whether it is a param, its name, its dtype before)] of params and buffers, [its ``WideBuffers``]
        self._before = {}
        self._dtypes = {}  # id(param or buffer) -> its dtype before

    def cast(self, modules, kept):
        """Cast the floating params and buffers of ``modules``; widen those that a module in ``kept`` (a list) owns.

        DTensors stay as they are (see ``models.fsdp``), unless they are widened.

        Raises:
            AmpError: a tensor consists of other tensors, which only its class can cast.
        """
        protected = {id(tensor) for module in kept for _, _, tensor in _own_tensors(module)}
        for module in modules:
            for is_param, name, tensor in _own_tensors(module):
                if id(tensor) in protected:
                    dtype = self.high if tensor_lists.is_narrower(tensor, self.high) else None
                else:
                    dtype = None if tensor_lists.is_shard(tensor) else self.dtype
                if dtype is None or not tensor.is_floating_point():
                    continue
                before = self._dtypes.setdefault(id(tensor), tensor.dtype)
                self._tensors_of(module).append((is_param, name, before))
                if tensor.dtype is not dtype:
                    _check_castable(name, tensor, module, dtype)
                    self.originals[id(tensor)] = data_of(tensor), tensor.grad
                    _set_data(tensor, dtype, *self.originals[id(tensor)])
                if not is_param and tensor_lists.is_narrower(tensor, before):
                    self._wide_buffers_of(module).keep(name, self.originals[id(tensor)][0], dtype)
            if module in self._before and isinstance(module, torch.nn.RNNBase):
                module.flatten_parameters()

    def _tensors_of(self, module):
        if module not in self._before:
            self._before[module] = before = [], []
            self._patches.defer_for(module, _restore_dtypes, weakref.ref(module), *before, self.originals)
        return self._before[module][0]

    def _wide_buffers_of(self, module):
        if WIDE_BUFFERS not in vars(module):
            self._patches.set_in_dict(module, WIDE_BUFFERS, WideBuffers(module._buffers))
        self._before[module][1][:] = [vars(module)[WIDE_BUFFERS]]
        return vars(module)[WIDE_BUFFERS]

    def __del__(self):
        self.originals.clear()


def _check_castable(name, tensor, module, dtype):
    """Raise if a tensor has no memory of its own: quantized weights consist of integers and scales, for one."""
    is_plain = emulated_half_arithmetic.is_plain(type(tensor)) or tensor_lists.is_shard(tensor)
    if not is_plain and _has_own_operations(type(tensor)) and tensor.numel() and not _has_memory(tensor):
        raise AmpError(
            f"{name} of a {type(module).__name__} is of the class {type(tensor).__name__}, which keeps its values in "
            f"other tensors, so it cannot be cast to {dtype}. Use O1 or O4, which leave weights as they are, or name "
            "its layer in keep_fp32."
        )


def _has_own_operations(kind):
    """Return whether a class replaces torch's operations, as one that keeps its values elsewhere must."""
    name = "__torch_dispatch__"  # since torch 1.11
    return getattr(kind, name, None) is not getattr(torch.Tensor, name, None)


def _has_memory(tensor):
    """Return whether a tensor has an address; on some devices (xla) none has."""
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:  # torch 2.13: a tensor without memory
        return False


def _restore_dtypes(reference, tensors, wide_buffers, originals):
    module = reference()
    for is_param, name, dtype in tensors:
        owned = module._parameters if is_param else module._buffers
        tensor = owned[name] if name in owned else None  # those of a TorchScript module have no ``get``
        if tensor is not None and (tensor.dtype is not dtype or id(tensor) in originals):
            if id(tensor) not in originals:
                wide = None if is_param or not wide_buffers else wide_buffers[0].widened(name, data_of(tensor))
                originals[id(tensor)] = data_of(tensor) if wide is None else wide, stored_gradient(tensor)
            _set_data(tensor, dtype, *originals[id(tensor)])
            del originals[id(tensor)]


def _set_data(tensor, dtype, data, grad):
    set_stored_gradient(tensor, None)  # torch rejects data of another dtype than the gradient's
    set_data(tensor, data.to(dtype))
    if grad is not None:
        set_stored_gradient(tensor, grad.to(dtype))


def _own_tensors(module):
    """Return (whether it is a param, its name, the tensor) for the module's own params and buffers."""
    owned = [(True, name, tensor) for name, tensor in module._parameters.items()]
    owned += [(False, name, tensor) for name, tensor in module._buffers.items()]
    return [each for each in owned if each[2] is not None]


def half_dtypes(models):
    """Return the dtypes of models' params that are narrower than float32, in their order, as a list."""
    params = [param for model in models for param in model.parameters()]
    return list(dict.fromkeys(each.dtype for each in params if tensor_lists.is_narrower(each, torch.float32)))


def is_batch_norm(module):
    """Return whether ``keep_batchnorm_fp32`` applies to a module.

    It does to batch norms, also those without affine params, and to instance norms that track running statistics.
    """
    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm) or _is_instance_norm_with_statistics(module)


def _is_instance_norm_with_statistics(module):
    return isinstance(module, torch.nn.modules.instancenorm._InstanceNorm) and module.track_running_stats


def batch_norms(model):
    """Return the modules of a model that ``keep_batchnorm_fp32`` applies to."""
    return [module for module in model.modules() if is_batch_norm(module)]


def needs_wide_input(norm, low, high):
    """Return whether a batch norm with params or statistics in ``high`` rejects input in ``low`` on its device.

    So does an instance norm without weights, whose statistics torch 2.13 rounds to the dtype of its input.
    """
    if _is_instance_norm_with_statistics(norm) and not norm.affine:
        return True
    owned = list(norm.parameters()) + list(norm.buffers())
    return bool(owned) and not features.has_mixed_batch_norm(str(owned[0].device), low, high)


def matching(model, wanted):
    """Return the outermost modules of ``model`` that the entries of ``keep_fp32`` name.

    Args:
        wanted: a list of module types, modules, ``fnmatch`` patterns for dotted names, predicates ``f(name, module)``.

    Raises:
        AmpTypeError: an entry is not one of these.
        AmpError: an entry matches nothing, which usually is a misspelling.
    """
    found = {}
    for entry in wanted:
        matches = _predicate(entry)
        hits = {name: module for name, module in model.named_modules() if matches(name, module)}
        if not hits:
            raise AmpError(f"keep_fp32: {entry!r} matches no module of the model.")
        found.update(hits)
    inner = {id(child) for module in found.values() for child in module.modules() if child is not module}
    return [module for module in found.values() if id(module) not in inner]


def _predicate(entry):
    if isinstance(entry, torch.nn.Module):
        return lambda name, module: module is entry
    if isinstance(entry, type) and issubclass(entry, torch.nn.Module):
        return lambda name, module: isinstance(module, entry)
    if isinstance(entry, str):
        return lambda name, module: fnmatch.fnmatchcase(name, entry)
    if callable(entry) and not isinstance(entry, type):
        return entry
    raise AmpTypeError(
        f"keep_fp32 takes module types, modules, name patterns and predicates f(name, module), not {entry!r}."
    )


_WRAPPERS = ("DistributedDataParallel", "DataParallel")
_LAZY = ("UninitializedParameter", "UninitializedBuffer")  # their names, since torch 1.8 has no ``is_lazy``


def check_model(model, allow_half):
    """Raise unless ``model`` is a plain float32 module.

    Raises:
        AmpError: it is wrapped for data parallelism already, has half params or buffers, or lazy ones.
    """
    names = [base.__name__ for base in type(model).__mro__]
    if "FullyShardedDataParallel" in names:
        raise AmpError(
            "The model is wrapped in FullyShardedDataParallel (FSDP1). Use torch.distributed.fsdp.fully_shard instead: "
            "amp.initialize takes the model that it has sharded, at every opt level."
        )
    for wrapper in _WRAPPERS:
        if wrapper in names:
            raise AmpError(
                f"The model is wrapped in {wrapper} already. Pass the plain model to amp.initialize and wrap what it "
                "returns."
            )
    if allow_half:
        return
    for kind, named in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            if type(tensor).__name__ in _LAZY:
                raise AmpError(f"{kind} {name} has no shape yet: run one batch through the model first.")
            if tensor_lists.is_narrower(tensor, torch.float32):
                raise AmpError(
                    f"Found {kind} {name} with dtype {tensor.dtype}, expected float32: you don't need to call .half() "
                    "(or .bfloat16()) on a model before amp.initialize, whatever the opt_level. For a model that is "
                    "loaded in half, give allow_half_model=True."
                )
