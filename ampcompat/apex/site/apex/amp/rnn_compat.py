"""Test for the recurrent backend from before torch 1.0."""

import torch

RNN_NAMES = ["rnn_relu", "rnn_tanh", "gru", "lstm"]


def has_old_rnns():
    """Return whether this torch has the recurrent backend from before torch 1.0."""
    return hasattr(getattr(torch.nn, "backends", None), "thnn") and not hasattr(torch, "_VF")
