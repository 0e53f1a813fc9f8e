"""``python -m ampcompat estimate``: one step of a script on fake tensors."""

IS_BOOKKEEPING = True  # see support/script_frames.py
