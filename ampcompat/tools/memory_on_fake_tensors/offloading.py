"""Offloading of saved tensors when the fake tensors of a GPU are already on the CPU.

Copies made by ``torch.autograd.graph.save_on_cpu`` are put on the meta device instead, so that the meter can
distinguish them from tensors on the GPU, and so that copying them back is a real copy.
"""

import torch

#: The device that represents the host.
HOST = "meta"


def offload(patches):
    """Make ``save_on_cpu``, and checkpoints that are offloaded by it, copy fake tensors to ``HOST`` and back.

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
