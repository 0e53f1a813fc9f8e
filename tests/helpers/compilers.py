"""Test what the compiler of the installed torch traces without splitting the graph."""

import functools

import torch

#: Whether a function tells when the compiler traces: there is none in torch 2.0 to 2.2.
TELLS_THAT_IT_TRACES = hasattr(getattr(torch, "compiler", None), "is_compiling")


@functools.lru_cache(maxsize=None)
def traces_bound_methods():
    """Return whether it traces calls of bound methods, as the wrappers and module hooks make; that of 2.3 does not."""

    class Sum:
        def add(self, x):
            return x + 1

    bound = Sum().add

    def added(x):
        return bound(x)

    try:
        torch.compile(added, backend="eager", fullgraph=True)(torch.ones(1))
    except Exception:  # of whichever kind the compiler has
        return False
    return True
