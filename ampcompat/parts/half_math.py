"""Half arithmetic at the speed of float32, for a CPU that has no half units.

Owns: the rounding points of such arithmetic: inputs rounded to half, float32 inside, results rounded to half.
Must not touch: any device with half units; the caller asks ``is_for`` first.
The surprise: these are the rounding points of a tensor core, which adds up in float32 too, so that results differ from
a GPU's only by the order of additions.
"""

import torch


def is_for(args):
    """Return whether the first tensor among arguments (nested in tuples and lists) is on the CPU."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return arg.device.type == "cpu"
        if isinstance(arg, (tuple, list)) and arg and isinstance(arg[0], torch.Tensor):
            return arg[0].device.type == "cpu"
    return False


def rounded(tensor, low, high):
    """Return a tensor with the values of ``low`` in the dtype ``high``; its gradient is rounded on the way back too."""
    return tensor.to(low).to(high)


def round_results(value, low):
    """Return floating results, alone or in a tuple or list, in the dtype ``low``."""
    if isinstance(value, torch.Tensor):
        return value.to(low) if value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return type(value)([round_results(item, low) for item in value])
    return value
