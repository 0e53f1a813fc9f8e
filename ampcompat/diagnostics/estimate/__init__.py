"""Predict the memory of a training step: the meter of ``observers/memory/`` measures one on fake tensors."""

IS_BOOKKEEPING = True  # see support/script_frames.py
