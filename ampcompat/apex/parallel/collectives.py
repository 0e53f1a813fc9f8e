"""Collectives of ``torch.distributed`` for many tensors at once: flattened by dtype and device, sent, and copied back.

Weights that amp has cast are broadcast through their float32 master weights, which ``initialize`` created on each rank.
"""

import torch
import torch.distributed as dist

from ...engine.session import process_state
from ...support import tensor_lists
from ...support.torch_compat.thread_context import in_process_group
from ..multi_tensor.flatten import flatten, unflatten


def flat_dist_call(tensor_list, call, extra_args=None):
    """Call a collective of ``torch.distributed`` once per dtype and device, in place.

    Args:
        tensor_list: dense tensors, in the same order on every rank.
        call: such as ``dist.broadcast``; after ``dist.all_reduce`` the sums are divided by the number of processes.
        extra_args: arguments of ``call`` after the tensor, such as ``(0,)``.
    """
    with torch.no_grad():
        for group in tensor_lists.grouped(tensor_list):
            flat = flatten(group)
            call(flat, *(extra_args or ()))
            if call is dist.all_reduce:
                flat /= dist.get_world_size()
            tensor_lists.copy_([tensor.detach() for tensor in group], unflatten(flat, group))


def broadcast_params(module):
    """Broadcast the params of rank 0, and their masters, to all ranks."""
    if not in_process_group():
        return
    for session in process_state.sessions:
        if session.enabled:
            session.refresh_masters()
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
    for session in process_state.sessions:
        if session.enabled and session.masters.find(param) is not None:
            return session.masters.find(param)
    return None
