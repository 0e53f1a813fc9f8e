"""Offloading of saved tensors, where the fake tensors of a GPU are on the CPU already.

Copies that ``torch.autograd.graph.save_on_cpu`` makes are put on the meta device in its place, so that the meter tells
them from what is on the GPU, and so that the copy back is one.
"""

import torch

#: The device that stands for the host.
HOST = "meta"


def offload(patches):
    """Let ``save_on_cpu``, and checkpoints that are offloaded by it, copy fake tensors to ``HOST`` and back.

    Args:
        patches: the ``PatchStack`` that undoes it.
    """
    graph = torch.autograd.graph

    def init(self, pin_memory=False, device_type="cuda"):
        graph.saved_tensors_hooks.__init__(self, _pack, _unpack)

    patches.set(graph.save_on_cpu, "__init__", init)


def _pack(tensor):
    return tensor.device, tensor.to(HOST)


def _unpack(packed):
    device, copied = packed
    return copied.to(device)
