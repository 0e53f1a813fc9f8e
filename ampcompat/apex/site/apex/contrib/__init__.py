"""The parts of ``apex.contrib`` that are carried."""

from . import clip_grad, layer_norm, optimizers, xentropy
