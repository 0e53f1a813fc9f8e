"""Old names of classes in pickles: those that ``torch.save(model)`` wrote refer to modules that have been moved since.

A pickle refers to a class by its module. The old modules are entries of ``sys.modules`` that have only these names.
"""

import functools
import importlib
import sys

#: The module in a pickle, relative to the package -> where its names are now.
_MOVED = {
    "apex.fp16_utils.loss_scaler": "apex.fp16_utils.fp16util",
    "apex.mlp.fused_dense": "apex.mlp",
    "apex.mlp.perceptron": "apex.mlp",
    "apex.normalization.norm_modules": "apex.normalization",
    "apex.optimizers.adagrad": "apex.optimizers.adam",
    "apex.optimizers.mixed_lamb": "apex.optimizers.lamb",
    "apex.recurrent.cells": "apex.recurrent",
    "apex.recurrent.stacks": "apex.recurrent",
    "engine.models.wide_buffers": "engine.models.state_dict",
    "models": "engine.models",
    "models.forward": "engine.models.forward_conversion",
    "models.state_dict": "engine.models.state_dict",
}
#: Names of ampcompat 0.2.0 -> the current ones.
_RENAMED = {"ForwardCasts": "ForwardConversion", "MasterTable": "SessionMasters", "_get_nothing": "refresh_nothing"}


def register(package):
    """Let pickles find the old names; nothing is imported before one of them is used."""
    for module, current in _MOVED.items():
        moved = type(sys)(f"{package}.{module}", "A module that has been moved, for pickles.")
        moved.__getattr__ = functools.partial(_find, f"{package}.{current}")
        sys.modules.setdefault(moved.__name__, moved)


def _find(module, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(importlib.import_module(module), _RENAMED.get(name, name))
