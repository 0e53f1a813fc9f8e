"""Test whether the installed torch can shard models on a CPU."""

import torch


def why_not():
    """Return why ``fully_shard`` cannot train on a CPU here, or None."""
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        return "this torch has no torch.distributed.fsdp.fully_shard"
    if not hasattr(torch.cpu.current_stream(), "record_event"):
        return "fully_shard of this torch needs a GPU (torch 2.6)"
    return None
