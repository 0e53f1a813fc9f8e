"""Checks of models, the cast of their weights with batch norm kept in float32, and its undoing.

A param stays the same object, so ties and references survive; only its data changes. ``ModelCast.originals`` holds the
float32 data until the optimizers have copied it to masters.
"""

import fnmatch
import weakref

import torch

from ...errors import AmpError, AmpTypeError
from ...support import tensor_lists
from ...support.patching import run_all
from ...support.torch_compat import features
from ..casting import half_emulation

_WRAPPERS = ("DistributedDataParallel", "DataParallel")


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
            if getattr(torch.nn.parameter, "is_lazy", lambda _: False)(tensor):
                raise AmpError(f"{kind} {name} has no shape yet: run one batch through the model first.")
            if tensor_lists.is_narrower(tensor, torch.float32):
                raise AmpError(
                    f"Found {kind} {name} with dtype {tensor.dtype}, expected float32: you don't need to call .half() "
                    "(or .bfloat16()) on a model before amp.initialize, whatever the opt_level. For a model that is "
                    "loaded in half, give allow_half_model=True."
                )


class ModelCast:
    """The weights of some models, cast to another dtype.

    Args:
        dtype: the dtype of the weights from now on.
        high: the dtype to which kept weights are cast if they are narrower.
    """

    def __init__(self, dtype, high):
        self.dtype = dtype
        self.high = high
        self.originals = {}  # id(param) -> (its data, its gradient) before the cast
        self._before = {}  # module -> [(whether it is a param, its name, its dtype before)] of params and buffers
        self._seen = set()

    def cast(self, modules, kept):
        """Cast the floating params and buffers of ``modules``; widen those that a module in ``kept`` (a list) owns.

        DTensors stay as they are (see ``models.fsdp``), unless they are widened.

        Raises:
            AmpError: a tensor consists of other tensors, which only its class can cast.
        """
        protected = {id(tensor) for module in kept for _, _, tensor in _own_tensors(module)}
        for module in modules:
            for is_param, name, tensor in _own_tensors(module):
                if id(tensor) in self._seen or not tensor.is_floating_point():
                    continue
                is_shard = tensor_lists.is_shard(tensor)
                if id(tensor) in protected:
                    dtype = self.high if tensor_lists.is_narrower(tensor, self.high) else None
                else:
                    dtype = None if is_shard else self.dtype
                if dtype is not None:
                    if tensor.dtype is not dtype:
                        _check_castable(name, tensor, module, dtype)
                    self._before.setdefault(module, []).append((is_param, name, tensor.dtype))
                    self._cast_tensor(tensor, dtype)
            if module in self._before and isinstance(module, torch.nn.RNNBase):
                module.flatten_parameters()

    def _cast_tensor(self, tensor, dtype):
        self._seen.add(id(tensor))
        if tensor.dtype is dtype:  # a master may have another
            return
        self.originals[id(tensor)] = tensor.data, tensor.grad
        _set_data(tensor, dtype, tensor.data, tensor.grad)

    def commit(self, patches):
        """Drop the original values: ``initialize`` has succeeded, and masters have copied those that they need.

        Args:
            patches: the ``PatchStack`` that casts every tensor, with its data at that time, back to its dtype.
        """
        self.originals = {}
        for module, tensors in self._before.items():
            patches.defer_for(module, _restore_dtypes, weakref.ref(module), tensors, {})

    def release(self):
        """Restore the dtype and the data of every tensor: ``initialize`` has failed."""
        run_all(
            [
                (_restore_dtypes, (weakref.ref(module), tensors, self.originals))
                for module, tensors in self._before.items()
            ]
        )


def _check_castable(name, tensor, module, dtype):
    """Raise if a tensor has no memory of its own: quantized weights consist of integers and scales, for one."""
    is_plain = half_emulation.is_plain(type(tensor)) or tensor_lists.is_shard(tensor)
    if not is_plain and tensor.numel() and not _has_memory(tensor):
        raise AmpError(
            f"{name} of a {type(module).__name__} is of the class {type(tensor).__name__}, which keeps its values in "
            f"other tensors, so it cannot be cast to {dtype}. Use O1 or O4, which leave weights as they are, or name "
            "its layer in keep_fp32."
        )


def _has_memory(tensor):
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:  # torch 2.13: a tensor without memory
        return False


def _restore_dtypes(reference, tensors, originals):
    module = reference()
    for is_param, name, dtype in tensors:
        owned = module._parameters if is_param else module._buffers
        tensor = owned[name] if name in owned else None  # those of a TorchScript module have no ``get``
        if tensor is not None and tensor.dtype is not dtype:
            _set_data(tensor, dtype, *originals.get(id(tensor), (tensor.data, tensor.grad)))


def _set_data(tensor, dtype, data, grad):
    tensor.grad = None  # torch rejects data of another dtype than the gradient's
    tensor.data = data.to(dtype)
    if grad is not None:
        tensor.grad = grad.to(dtype)


def _own_tensors(module):
    """Return (whether it is a param, its name, the tensor) of the params and buffers that are the module's own."""
    owned = [(True, name, tensor) for name, tensor in module._parameters.items()]
    owned += [(False, name, tensor) for name, tensor in module._buffers.items()]
    return [each for each in owned if each[2] is not None]


def half_dtypes(models):
    """Return the dtypes of models' params that are narrower than float32, in their order, as a list."""
    params = [param for model in models for param in model.parameters()]
    return list(dict.fromkeys(each.dtype for each in params if tensor_lists.is_narrower(each, torch.float32)))


def needs_wide_input(norm, low, high):
    """Return whether a batch norm with params in ``high`` rejects input in ``low`` on its device."""
    device = next(norm.parameters()).device
    return not features.has_mixed_batch_norm(str(device), low, high)


def batch_norms(model):
    """Return the modules that ``keep_batchnorm_fp32`` applies to: batch norms with affine params."""
    norm = torch.nn.modules.batchnorm._BatchNorm
    return [module for module in model.modules() if isinstance(module, norm) and module.affine]


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
