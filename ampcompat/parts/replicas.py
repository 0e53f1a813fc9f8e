"""Let cast weights and their masters follow when torch's DistributedDataParallel gives every rank what rank 0 has.

Owns: the broadcast of masters and of cast weights.
Must not touch: what DistributedDataParallel does; it has done it when this begins.
The surprise: wrapping broadcasts the half weights only, and in old torch what ``state_dict`` returns, which is a float32 copy. Ranks that
began with other seeds would keep their own masters, round those into the weights again, and train apart in silence.
"""

import functools

import torch


def broadcast_cast_weights(find_master, patches):
    """Broadcast the masters, and the params and buffers, of a model whenever it is wrapped, from the first rank.

    Args:
        find_master: returns the master of a half param, or None.
        patches: the ``PatchStack`` that undoes it.
    """
    wrapper = torch.nn.parallel.DistributedDataParallel
    original = wrapper.__init__

    @functools.wraps(original)
    def __init__(self, module, *args, **kwargs):
        original(self, module, *args, **kwargs)
        with torch.no_grad():
            for tensor in list(module.parameters()) + list(module.buffers()):
                master = find_master(tensor)
                source = tensor if master is None else master
                torch.distributed.broadcast(source, _first_rank_of(self.process_group), group=self.process_group)
                if master is not None:
                    tensor.copy_(master)

    patches.set(wrapper, "__init__", __init__)


def _first_rank_of(group):
    ranks = getattr(torch.distributed, "get_process_group_ranks", None)  # older torch: the group of all ranks
    return 0 if ranks is None else ranks(group)[0]
