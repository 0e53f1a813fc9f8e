"""One collective for many tensors: flattened by dtype and device, sent, and copied back.

Owns: ``flatten``, ``unflatten``, ``flat_dist_call``, and the broadcast with which ranks start alike.
Must not touch: when and why anything is sent.
The surprise: weights that amp has cast are broadcast by way of their float32 masters, which ``initialize`` made from
this rank's own values.
"""

import torch
import torch.distributed as dist

from ...parts import tensors
from ...runtime import state


def flatten(alike):
    """Return tensors of one dtype and device as one vector."""
    return torch.cat([tensor.contiguous().view(-1) for tensor in alike])


def unflatten(flat, alike):
    """Return views of the front of ``flat`` with the shapes of ``alike``."""
    views, start = [], 0
    for tensor in alike:
        views.append(flat.narrow(0, start, tensor.numel()).view(tensor.shape))
        start += tensor.numel()
    return views


def flat_dist_call(tensor_list, call, extra_args=None):
    """Call a collective of ``torch.distributed`` once per dtype and device, in place.

    Args:
        tensor_list: dense tensors, in the same order on every rank.
        call: such as ``dist.broadcast``; after ``dist.all_reduce`` the sums are divided by the number of processes.
        extra_args: what ``call`` takes beside the tensor, such as ``(0,)``.
    """
    with torch.no_grad():
        for alike in tensors.grouped(tensor_list):
            flat = flatten(alike)
            call(flat, *(extra_args or ()))
            if call is dist.all_reduce:
                flat /= dist.get_world_size()
            tensors.copy_([tensor.detach() for tensor in alike], unflatten(flat, alike))


def is_distributed():
    """Return whether this process is one of a group."""
    return dist.is_available() and dist.is_initialized()


def broadcast_params(module):
    """Give every rank the params of rank 0, masters and all."""
    if not is_distributed():
        return
    params = list(module.parameters())
    masters = [master_of(param) for param in params]
    sources = [param if master is None else master for param, master in zip(params, masters)]
    flat_dist_call(sources, dist.broadcast, (0,))
    with torch.no_grad():
        for param, source in zip(params, sources):
            if source is not param:
                param.copy_(source)


def master_of(param):
    """Return the float32 master that amp keeps of a half param, or None."""
    for session in state.sessions:
        if session.enabled and session.masters.find(param) is not None:
            return session.masters.find(param)
    return None
