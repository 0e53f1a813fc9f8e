"""Measure the memory of a training step, by kind."""

IS_BOOKKEEPING = True  # see support/script_frames.py
