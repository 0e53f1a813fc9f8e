"""Explain why steps were skipped: a record of each backward pass, what grew before, and the messages."""

IS_BOOKKEEPING = True  # see support/script_frames.py
