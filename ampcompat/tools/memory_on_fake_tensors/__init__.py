"""Predict the memory of a training step, including activations, by running it on fake tensors."""

IS_BOOKKEEPING = True  # see support/script_frames.py
