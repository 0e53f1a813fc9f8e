"""Lets ``torch.distributed.destroy_process_group`` end the threads of a group."""

import importlib

import torch


def import_functions_of_default_group():
    """Import ``torch.distributed.nn.functional`` while no process group exists, if ``torch.compile`` would later.

    Its functions have the default group as a default argument. ``torch._dynamo``, which the first optimizer step
    imports, imports it too; if a group exists by then, these arguments hold it, ``destroy_process_group`` does not end
    its threads, and one that frees a tensor during interpreter shutdown aborts the process ("terminate called without
    an active exception"; gloo, torch 2.13).

    Torch without ``ProcessGroup.shutdown`` (2.5 and before) is left as it is: there the destructor of a group waits,
    while it holds Python's lock, for threads that may wait for that lock, so a group that can be freed can hang.
    """
    if not torch.distributed.is_available() or torch.distributed.is_initialized():
        return
    if hasattr(torch.distributed.ProcessGroup, "shutdown"):
        importlib.import_module("torch.distributed.nn.functional")
