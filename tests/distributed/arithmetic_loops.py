"""What each rank of the tests of unlike CPUs does; importable by spawned processes."""

import os
import warnings

import torch

import ampcompat
from ampcompat import amp
from ampcompat.apex import parallel

WRAPPERS = {"torch": torch.nn.parallel.DistributedDataParallel, "apex": parallel.DistributedDataParallel}


def wrapped_twice(rank, level, wrapper, settings):
    """Return the warnings of this rank, which has the setting of its number, as it wraps two models at a level."""
    os.environ["AMPCOMPAT_HALF_MATH"] = settings[rank]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for _ in range(2):
                model = torch.nn.Linear(3, 2)
                amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0)
                WRAPPERS[wrapper](model)
        finally:
            ampcompat.reset()
    return [str(each.message) for each in caught if "HALF_MATH" in str(each.message)]


def all_cases(rank, cases):
    """Return ``{case: wrapped_twice}``, as one group of processes costs seconds."""
    return {case: wrapped_twice(rank, *case) for case in cases}
