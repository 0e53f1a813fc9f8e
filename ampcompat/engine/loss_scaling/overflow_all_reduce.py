"""All-reduce the overflow flags of the ranks of a process group, so that they skip the same steps."""

import torch

from ...errors import AmpError, AmpTypeError
from ...support.tensor_lists import is_shard
from ...support.torch_compat.thread_context import in_process_group


def checked_group(group):
    """Return ``group`` if flags can be reduced over it: True (all ranks), a process group, or None for none.

    Raises:
        AmpTypeError: it is neither.
        AmpError: torch.distributed has not been initialized.
    """
    if group is None or group is False:
        return None
    if isinstance(group, (str, int, float, list, tuple)) and group is not True:
        raise AmpTypeError(
            f"process_group must be True (all ranks), a torch.distributed process group or None, not {group!r}."
        )
    if not in_process_group():
        raise AmpError("process_group needs torch.distributed.init_process_group(...) before amp.initialize.")
    return group


def groups_of(tensors):
    """Return the process groups over which the DTensors among ``tensors`` are split, each once."""
    groups = []
    for tensor in [tensor for tensor in tensors if is_shard(tensor)]:
        for dimension, placement in enumerate(tensor.placements):
            group = None if placement.is_replicate() else tensor.device_mesh.get_group(dimension)
            if group is not None and group not in groups:
                groups.append(group)
    return groups


def all_reduced(flags, *groups):
    """Return ``[flag]``, which is 1 on every rank of the groups if a flag of any of them was 1.

    Args:
        flags: float32 tensors of shape (), any number, on any devices. The number may differ between ranks.
        groups: what ``checked_group`` and ``groups_of`` returned; None leaves ``flags`` as they are.
    """
    for group in [True] if True in groups else groups:
        if group is not None:
            flags = [_max_over_ranks(flags, group)]
    return flags


def _max_over_ranks(flags, group):
    device = flags[0].device if flags else _home(group)
    flag = torch.zeros((), dtype=torch.float32, device=device)
    for each in flags:
        flag = torch.max(flag, each.to(device))
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX, **group_option(group))
    return flag


def group_option(group):
    """Return the keyword ``group`` of functions of torch.distributed as a dict; empty for True, all ranks."""
    return {} if group is True else {"group": group}


def compared(number, group=True):
    """All-gather one integer per rank; return them as a list, by rank within the group.

    Args:
        group: a process group that reduces on the CPU, or True for all ranks.
    """
    mine = torch.tensor([number], dtype=torch.int64, device="cpu")
    theirs = [torch.zeros_like(mine) for _ in range(torch.distributed.get_world_size(**group_option(group)))]
    torch.distributed.all_gather(theirs, mine, **group_option(group))
    return [int(each) for each in theirs]


def _home(group):
    """Return a device on which the backend of ``group`` can reduce."""
    named = torch.distributed.get_backend(**group_option(group))
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in str(named) else torch.device("cpu")
