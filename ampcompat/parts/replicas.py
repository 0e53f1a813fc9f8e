"""Let the masters follow when torch's DistributedDataParallel gives every rank the weights of rank 0.

Owns: the broadcast of masters.
Must not touch: what DistributedDataParallel does; it has done it when this begins.
The surprise: wrapping broadcasts the half weights only. Ranks that began with other seeds would keep their own masters, and the first
step would round those into the weights again: the ranks would train apart in silence.
"""

import functools

import torch


def broadcast_masters(find_master, patches):
    """Broadcast the masters of a model whenever it is wrapped, from the same rank as its weights.

    Args:
        find_master: returns the master of a half param, or None.
        patches: the ``PatchStack`` that undoes it.
    """
    wrapper = torch.nn.parallel.DistributedDataParallel
    original = wrapper.__init__

    @functools.wraps(original)
    def __init__(self, module, *args, **kwargs):
        original(self, module, *args, **kwargs)
        masters = [find_master(param) for param in module.parameters()]
        with torch.no_grad():
            for master in [master for master in masters if master is not None]:
                torch.distributed.broadcast(master, _first_rank_of(self.process_group), group=self.process_group)

    patches.set(wrapper, "__init__", __init__)


def _first_rank_of(group):
    ranks = getattr(torch.distributed, "get_process_group_ranks", None)  # older torch: the group of all ranks
    return 0 if ranks is None else ranks(group)[0]
