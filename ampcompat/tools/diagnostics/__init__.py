"""Explain why steps were skipped: tensor statistics, activation hooks, a record of each overflow."""

IS_BOOKKEEPING = True  # see support/script_frames.py
