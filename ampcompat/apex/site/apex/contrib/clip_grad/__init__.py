"""Gradient clipping."""

from ampcompat.apex.contrib import clip_grad_norm_
