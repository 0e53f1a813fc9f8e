"""Copies of models, optimizers and state dicts by way of ``pickle`` and of ``torch.save``."""

import inspect
import io
import pickle

import torch

TAKES_WEIGHTS_ONLY = "weights_only" in inspect.signature(torch.load).parameters


def pickled(value):
    """Return what ``pickle`` makes of a value."""
    return pickle.loads(pickle.dumps(value))


def saved_and_loaded(value):
    """Return what ``torch.save`` and ``torch.load`` make of a value, whatever classes it has."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **({"weights_only": False} if TAKES_WEIGHTS_ONLY else {}))
