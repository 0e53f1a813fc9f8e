"""The ranks of a prediction: a process group without other processes, and models sharded over it.

The memory of a rank is found by running torch's own ``fully_shard`` and ``ZeroRedundancyOptimizer`` on fake tensors, in
a process group of torch's backend "fake", whose collectives do nothing. For ``DistributedDataParallel``, whose reducer
reads memory, only the buckets are added: a flat copy of the gradients.
"""

import importlib
import warnings
from contextlib import contextmanager

import torch

from ...engine.models import fsdp
from ...errors import AmpError
from ...support.torch_compat import thread_context
from .shard_layout import items_of

#: The choices of ``shard`` in addition to lists of modules.
WAYS = ("zero1", "zero2", "full")


class Ranks:
    """A number of ranks, and how a model is sharded over them.

    Args:
        world_size: their number.
        shard: None, one of ``WAYS``, or the modules that ``fully_shard`` is called with before the model.
        rank: the one that is predicted.
    """

    def __init__(self, world_size=1, shard=None, rank=0):
        self.world_size = world_size
        self.shard = shard
        self.rank = rank
        self._mesh = None

    @property
    def shards_params(self):
        """Whether the model goes through ``fully_shard``."""
        return self.shard not in (None, "zero1")

    @property
    def has_buckets(self):
        """Whether the model is wrapped in DistributedDataParallel."""
        return not self.shards_params and (self.world_size > 1 or self.shard == "zero1")

    @contextmanager
    def joined(self):
        """Return a context manager that joins a process group as one rank, if torch's own sharding needs one.

        Raises:
            AmpError: there is a process group already.
        """
        if self.shard is None:
            yield
            return
        if thread_context.in_process_group():
            raise AmpError(
                "estimate predicts a rank in its own process group, but torch.distributed is already initialized. "
                "Call it before init_process_group, in one process."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch compiles functions when this is imported, and warns about it itself
            importlib.import_module("torch.distributed.optim")  # here, since that works only without casts
        from torch.distributed.device_mesh import init_device_mesh
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.world_size)
        try:
            self._mesh = init_device_mesh("cpu", (self.world_size,))  # reads values, so before tensors are fake
            yield
        finally:
            self._mesh = None
            torch.distributed.destroy_process_group()

    def spread(self, model, copied, policy):
        """Shard a fake model with ``fully_shard``.

        Args:
            model: the fake copy.
            copied: ``{id(module): its copy}``, to find the modules of ``shard``.
            policy: the level's ``Policy``.
        """
        if not self.shards_params:
            return
        from torch.distributed.fsdp import fully_shard

        blocks = items_of(model) if isinstance(self.shard, str) else [copied[id(block)] for block in self.shard]
        for module in blocks + [model]:
            fully_shard(
                module,
                mesh=self._mesh,
                mp_policy=fsdp.policy_of(policy),
                reshard_after_forward=self.shard != "zero2",
            )

    def optimizer(self, make_optimizer, params):
        """Return the optimizer of one rank."""
        if self.shard != "zero1":
            return make_optimizer(params)
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(params, _class_for(make_optimizer))

    def bucket_bytes(self, model):
        """Return the bytes of DistributedDataParallel's buckets for the gradients of a model."""
        if not self.has_buckets:
            return 0
        trained = [param for param in model.parameters() if param.requires_grad]
        return sum(param.numel() * param.element_size() for param in trained)


def _class_for(make_optimizer):
    """Return an optimizer class for ``ZeroRedundancyOptimizer``, which calls it with param groups and no options."""
    if isinstance(make_optimizer, type):
        return make_optimizer

    def make(groups, **options):
        return make_optimizer(groups)

    return make
