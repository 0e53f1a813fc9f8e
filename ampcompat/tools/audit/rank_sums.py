"""In which dtypes the ranks of a training add up tensors: by functions of ``torch.distributed``, and by DDP.

``fully_shard``, FullyShardedDataParallel and communication hooks call these functions. DistributedDataParallel without
a hook adds up gradients in C++, in the dtypes of its params.
"""

import functools
import inspect

import torch

from ...support.containers import floating_tensors
from ...support.torch_compat.thread_context import world_size
from ...support.torch_compat.torch_names import dtype_name
from .weight_updates import HALF

#: What the report calls them -> functions of ``torch.distributed``, of which some torch may lack one.
_FUNCTIONS = {
    "all_reduce": ("all_reduce", "all_reduce_coalesced"),
    "reduce": ("reduce",),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
}


class RankSums:
    """Notes them while it ``watch``es. Numbers, such as losses and flags, are not noted, only tensors with several.

    Attributes:
        dtypes: ``{name of a dtype: {a key of _FUNCTIONS, or "DistributedDataParallel": None}}``.
        are_half: whether a half dtype is one of them.
    """

    def __init__(self):
        self.dtypes, self.are_half = {}, False

    def watch(self, patches):
        """Replace torch's functions until ``patches`` is undone."""
        for name, functions in _FUNCTIONS.items():
            for function in filter(None, (getattr(torch.distributed, each, None) for each in functions)):
                patches.redirect(inspect.unwrap(function), functools.partial(self._called, name))

    def _called(self, name, function, *args, **kwargs):
        if world_size() > 1:
            for tensor in floating_tensors([args, kwargs], []):
                if tensor.numel() > 1:
                    self._note(tensor.dtype, name)
        return function(*args, **kwargs)

    def look(self, modules):
        """Note what those of the modules that are a DistributedDataParallel add up in C++."""
        parallel = torch.nn.parallel.DistributedDataParallel
        for module in [each for each in modules if isinstance(each, parallel)] if world_size() > 1 else ():
            hook = module._get_ddp_logging_data().get("comm_hook")
            dtypes = {param.dtype for param in module.parameters() if param.requires_grad} if hook is None else ()
            for dtype in [torch.float16] if hook is not None and "FP16_COMPRESS" in hook else dtypes:
                self._note(dtype, "DistributedDataParallel")

    def _note(self, dtype, name):
        self.are_half = self.are_half or dtype in HALF
        self.dtypes.setdefault(dtype_name(dtype), {})[name] = None
