"""Models that ``amp.initialize`` refuses: wrapped for data parallelism, half already, or with lazy params."""

import torch

from ...errors import AmpError
from ...support import tensor_lists

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
