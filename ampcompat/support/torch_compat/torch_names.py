"""Modules, classes and functions of torch by their dotted names, and the names of dtypes in messages and files."""

import importlib
import sys


def find(dotted):
    """Return the module, class or function with a dotted name, or None where this torch has none.

    A module that is imported comes before what has its name, as ``torch.nn.parallel.parallel_apply`` has both. One that
    is not imported is imported unless its name is taken: in torch 1.7, ``import torch.fft`` replaces the function
    ``torch.fft`` by a module, which is for the script to do.
    """
    names = dotted.split(".")
    found = importlib.import_module(names[0])
    for end, name in enumerate(names[1:], 2):
        path = ".".join(names[:end])
        if path in sys.modules or not hasattr(found, name):
            try:
                found = importlib.import_module(path)
            except ImportError:
                return None
        else:
            found = getattr(found, name)
    return found


def dtype_name(dtype):
    """Return the name of a dtype without "torch."."""
    return str(dtype).replace("torch.", "")
