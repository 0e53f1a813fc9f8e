"""Test whether the installed torch can shard models on a CPU."""

import torch

from ampcompat.support.torch_compat import features


def why_not():
    """Return why ``fully_shard`` cannot train on a CPU here, or None."""
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        return "this torch has no torch.distributed.fsdp.fully_shard"
    if not hasattr(torch.cpu.current_stream(), "record_event"):
        return "fully_shard of this torch needs a GPU (torch 2.6)"
    return None


def why_no_copies():
    """Return why ``fully_shard`` cannot train on a mesh of copies and shards on a CPU here, or None."""
    if features.is_version_within(oldest="2.7", newest="2.7"):
        return "torch 2.7 cannot reduce the gradients of copies on a CPU: an assertion of its own fails"
    return None
