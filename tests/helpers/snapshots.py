"""What of torch a test must leave as it was, and the settings that must not reach it."""

import gc
import operator
import os
import threading
import types

import torch
import torch.utils.checkpoint

OWNERS = [
    torch,
    torch.Tensor,
    torch.nn.Parameter,
    torch.nn.functional,
    torch.nn.modules.rnn,
    torch.autograd,
    torch.autograd.function.BackwardCFunction,
    torch.utils.checkpoint,
    torch.utils.checkpoint.CheckpointFunction,
    torch.optim.Optimizer,
    torch.nn.Module,
    torch.nn.Sequential,
    torch.nn.Linear,
    torch.nn.BatchNorm2d,
    torch.nn.LSTM,
    torch.nn.RNN,
    torch.nn.GRU,
    torch.nn.modules.rnn.RNNBase,
    torch.nn.TransformerEncoderLayer,
    torch.nn.MultiheadAttention,
    torch.nn.modules.rnn._VF,
    torch.linalg if hasattr(torch, "linalg") else torch,
    threading.Thread,
]


#: What torch itself replaces when it imports its compiler, which optimizers make it do.
BY_TORCH = {(torch, "manual_seed")}


def snapshot():
    """Return (attributes of torch's namespaces by identity, autocast flags and ``torch.jit.script``)."""
    return [dict(vars(owner)) for owner in OWNERS], dict(autocast_flags(), script=torch.jit.script)


def settings():
    """Return the names of the environment variables that change what ampcompat does."""
    return [name for name in os.environ if name.startswith("AMPCOMPAT_") and name != "AMPCOMPAT_CLIENT"]


def autocast_flags():
    """Return every autocast flag that the installed torch has, by name."""
    flags = {"cache": torch.is_autocast_cache_enabled()} if hasattr(torch, "is_autocast_cache_enabled") else {}
    if hasattr(torch, "get_autocast_dtype"):
        for device in ("cpu", "cuda"):
            flags[device] = (torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
    else:
        for name in (
            "is_autocast_enabled",
            "is_autocast_cpu_enabled",
            "get_autocast_gpu_dtype",
            "get_autocast_cpu_dtype",
        ):
            if hasattr(torch, name):
                flags[name] = getattr(torch, name)()
    if hasattr(torch, "autocast_increment_nesting"):
        torch.autocast_increment_nesting()
        flags["nesting"] = torch.autocast_decrement_nesting()
    mha = getattr(getattr(torch, "backends", None), "mha", None)
    if mha is not None:
        flags["mha fast path"] = mha.get_fastpath_enabled()
    return flags


def same(before, after):
    """Return whether both hold the same names in the same order with the same objects: faster than ``differences``."""
    return before[1] == after[1] and all(
        list(old) == list(new) and all(map(operator.is_, old.values(), new.values()))
        for old, new in zip(before[0], after[0])
    )


def differences(before, after):
    """Return sentences: what is not as it was. A submodule that was imported meanwhile is not a difference."""
    flags, flags_now = before[1], after[1]
    found = [
        f"{flag}: {flags[flag]} before, {flags_now[flag]} after" for flag in flags if flags[flag] != flags_now[flag]
    ]
    for owner, old, new in zip(OWNERS, before[0], after[0]):
        name = getattr(owner, "__name__", owner)
        found += [f"{name}.{key} is gone" for key in old if key not in new]
        found += [
            f"{name}.{key} is another"
            for key in old
            if key in new and new[key] is not old[key] and (owner, key) not in BY_TORCH
        ]
        found += [
            f"{name}.{key} is new"
            for key in new
            if key not in old and not isinstance(new[key], types.ModuleType) and not key.startswith("__")
        ]
    return found


def differences_settled(before):
    """Compare with now; look again after a garbage collection, since classes are put back when their models go."""
    after = snapshot()
    found = [] if same(before, after) else differences(before, after)
    if found:
        gc.collect()
        found = differences(before, snapshot())
    return found
