"""Sessions: initialize, backward passes, and the state of the process."""

IS_BOOKKEEPING = True  # see support/script_frames.py
