"""``WeightCache``: the low-precision copies of weights that functions use at O1 and O4, for one forward pass.

A copy is kept while the outermost ``forward`` of an initialized model runs, for the thread that runs it. Elsewhere a
weight is cast at each use. So nothing that changes weights between forward passes, an optimizer's step, ``.data``, EMA
weights that are swapped in or a loaded checkpoint, can meet a copy of what was there before, and nothing is watched.

Autocast has a cache too. All threads share it, and it ignores changes within a forward pass. So it is off, except in
calls for which an ``AutocastCache`` says that its copies are right.
"""

import torch

from ...support.torch_compat.fake_tensors import address, is_fake_type
from ...support.torch_compat.thread_context import (
    dispatch_modes,
    functorch_level,
    in_inference_mode,
    is_capturing_cuda_graph,
    jit_tracing_state,
)

Parameter = torch.nn.Parameter
_grad_is_enabled = torch.is_grad_enabled


def is_weight(tensor):
    """Return whether copies of a tensor are kept: it is a plain parameter."""
    kind = type(tensor)
    return kind is Parameter or (is_fake_type(kind) and isinstance(tensor, Parameter))


def _belongs_to_its_user(weight):
    """Return whether a copy made now belongs to a function transform, a trace or a CUDA graph, which replays it."""
    if functorch_level() is not None or jit_tracing_state() is not None:
        return True
    return weight.is_cuda and not is_fake_type(type(weight)) and is_capturing_cuda_graph()


class WeightCache:
    """Copies of weights by ``make``.

    Args:
        make: weight -> its copy.
        thread: a thread-local object whose ``copies`` is a dict during a forward pass, None elsewhere.
    """

    def __init__(self, make, thread):
        self._make = make
        self._thread = thread

    def cast(self, weight):
        """Return ``make(weight)``, or what an earlier call in this forward pass returned.

        The weight must be as it was then: its version, memory and ``requires_grad``. So must the mode: a copy made
        without gradients is of no use where they are wanted.
        """
        copies = self._thread.copies
        if copies is None or _belongs_to_its_user(weight):
            return self._make(weight)
        try:
            where = weight.data_ptr() if type(weight) is Parameter else address(weight)
            version = weight._version
        except RuntimeError:  # it has no memory (sparse), or was made in inference mode
            return self._make(weight)
        state = (version, where, weight.requires_grad, _grad_is_enabled(), in_inference_mode())
        key = id(self), id(weight)
        copy, known, _ = copies.get(key, (None, None, None))
        if known != state:
            copy = self._make(weight)
            # In a FakeTensorMode the copy of a real weight is fake: for that mode alone.
            if is_fake_type(type(copy)) is is_fake_type(type(weight)):
                copies[key] = copy, state, weight
        return copy


class AutocastCache:
    """Autocast's cache in one forward pass of the main thread: casts in C++ take a fraction of the time.

    Args:
        thread: a thread-local object whose ``cached`` is a dict where this cache is used, None elsewhere.
    """

    def __init__(self, thread):
        self._thread = thread

    def has_right_copies(self, weights):
        """Return whether autocast may use its cache in a call with these plain params; it is cleared if they changed.

        The conditions are those of ``WeightCache``. Autocast keeps no copies where no gradient is wanted.
        """
        cached = self._thread.cached
        if cached is None or not _grad_is_enabled() or functorch_level() is not None or jit_tracing_state() is not None:
            return False
        if weights[0].is_cuda and is_capturing_cuda_graph():
            return False
        mode = dispatch_modes()
        for weight in weights:
            if not weight.requires_grad:
                return False
            try:
                state = weight._version, weight.data_ptr(), mode
            except RuntimeError:  # it was made in inference mode
                return False
            known = cached.setdefault(id(weight), (state, weight))
            if known[0] != state:
                self.clear()
                return self.has_right_copies(weights)
        return True

    def clear(self):
        """Drop all copies, if this thread uses the cache."""
        if self._thread.cached is not None:
            self._thread.cached.clear()
            torch.clear_autocast_cache()
