"""Find a module, class or function of torch by its dotted name."""

import importlib


def find(dotted):
    """Return what a dotted name such as "torch.nn.functional" refers to, or None where this torch has no such name.

    A submodule that torch has not imported is imported, unless the name refers to something else: in torch 1.7,
    ``import torch.fft`` replaces the function ``torch.fft`` by a module, which is for the script to do.
    """
    names = dotted.split(".")
    found = importlib.import_module(names[0])
    for end, name in enumerate(names[1:], 2):
        if hasattr(found, name):
            found = getattr(found, name)
            continue
        try:
            found = importlib.import_module(".".join(names[:end]))
        except ImportError:
            return None
    return found
