"""Gradient clipping."""

from ampcompat.apex.contrib.clip_grad import clip_grad_norm_
