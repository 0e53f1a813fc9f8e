"""The parts of ``apex.contrib`` that are provided."""

from . import clip_grad, layer_norm, optimizers, xentropy
