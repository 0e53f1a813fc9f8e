"""Make ``torch.distributed.destroy_process_group`` end the threads of a group, and call it if scripts do not."""

import atexit
import importlib
import sys

import torch

from . import features

#: Whether a group can be freed: before torch 2.8, its destructor, which holds the GIL, waits for gloo's threads, which
#: may wait for the GIL (https://github.com/pytorch/pytorch/pull/154976).
CAN_BE_FREED = features.is_version_within(oldest="2.8")


def import_functions_of_default_group():
    """Import ``torch.distributed.nn.functional`` while no process group exists, if ``torch.compile`` would later.

    Its functions have the default group as a default argument. ``torch._dynamo``, which the first optimizer step
    imports, imports it too; if a group exists by then, these arguments reference it, ``destroy_process_group`` does not
    end its threads, and a thread that frees a tensor during interpreter shutdown aborts the process ("terminate called
    without an active exception"; gloo, torch 2.13).

    Nothing is done before torch 2.8, where freeing a group can hang.
    """
    if not torch.distributed.is_available() or torch.distributed.is_initialized():
        return
    if CAN_BE_FREED:
        importlib.import_module("torch.distributed.nn.functional")


def destroy_groups_at_exit():
    """Call ``destroy_process_group`` when this process ends without an error, if it has a process group then.

    Scripts for NCCL need not call it, but threads of gloo that free a tensor during interpreter shutdown abort the
    process. It is not called after an error, since other ranks may wait for this one, or before torch 2.8, where it can
    hang.
    """
    if CAN_BE_FREED:
        atexit.unregister(_destroy_groups)  # once is enough
        atexit.register(_destroy_groups)


def _destroy_groups():
    if torch.distributed.is_initialized() and not hasattr(sys, "last_type"):
        torch.distributed.destroy_process_group()
