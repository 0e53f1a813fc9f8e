"""Checksums of the data of a run's first steps, with which ``judging.verdict`` detects whether runs had the same data.

Losses alone do not show it: those of a half level may be several percent away from float32's on equal batches.
"""

import ctypes
import inspect
import sys
import zlib

import torch

from ...support.containers import tensors_in
from ...support.torch_compat import thread_context

#: The number of steps whose data are recorded, of tensors in each that count, and of elements of each tensor.
STEPS, TENSORS, ELEMENTS = 30, 64, 4096


class DataFingerprints:
    """Sums of checksums of what data loaders returned, and of what models were called with, for the first steps.

    Sums are used since the threads of DataParallel call models in any order. Inputs that require a gradient, such as
    what a generator passes to a discriminator, are left out because a level rounds them.
    """

    def __init__(self):
        self._loaded, self._inputs = [], []  # samples of this step: (shape, elements)
        self._steps = 0

    def watch(self, patches):
        """Record the batches of every ``DataLoader`` until ``patches`` is undone."""
        base = torch.utils.data.dataloader
        names = ("_BaseDataLoaderIter", "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")
        for owner in [getattr(base, name, None) for name in names]:
            if "__next__" in vars(owner or object):
                # The inner function: sessions replace the attribute, earlier or meanwhile.
                patches.redirect(inspect.unwrap(owner.__next__), self._watched)

    def _watched(self, following):
        def watched(iterator):
            batch = following(iterator)
            self._add(self._loaded, batch)
            return batch

        return watched

    def called(self, arguments):
        """Take the arguments of a model, nested in containers, into account."""
        if _is_traced():
            return
        compiler = sys.modules.get("torch._dynamo")
        # Between two graphs, the compiler treats Python code that runs as part of the model, too.
        add = self._add if compiler is None else compiler.disable(self._add)
        add(self._inputs, arguments)

    def _add(self, samples, value):
        if self._steps < STEPS and len(samples) < TENSORS:
            samples += [_sample(each) for each in tensors_in(value) if _is_data(each)][: TENSORS - len(samples)]

    def end_step(self):
        """Return (checksum of loaded data, checksum of inputs) of the step that ends, 0 if there are none; or None."""
        if self._steps == STEPS:
            return None
        found = [sum(map(_checksum, samples)) % 2**31 for samples in (self._loaded, self._inputs)]
        self._loaded, self._inputs = [], []
        self._steps += 1
        return found


def _is_traced():
    """Return whether the running code is traced or transformed, so that tensors have no values of their own."""
    return (thread_context.functorch_level(), thread_context.jit_tracing_state()) != (None, None)


def _is_data(tensor):
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.requires_grad
    if tensor.is_cuda and thread_context.is_capturing_cuda_graph():
        return False
    return is_plain and tensor.device.type != "meta"


def _sample(tensor):
    """Return a tensor's shape, and up to about ``ELEMENTS`` of its elements as a new tensor on its device."""
    with thread_context.without_dispatch_modes(), thread_context.without_gradients():
        flat = tensor.detach().reshape(-1)
        return tuple(tensor.shape), flat[:: flat.numel() // ELEMENTS + 1].clone()


def _checksum(sample):
    shape, elements = sample
    with thread_context.without_dispatch_modes():
        elements = elements.cpu()
    content = ctypes.string_at(elements.data_ptr(), elements.numel() * elements.element_size())
    return zlib.crc32(content, zlib.crc32(repr(shape).encode()))
