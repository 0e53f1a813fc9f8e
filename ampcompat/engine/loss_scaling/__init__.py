"""Loss scaling: the loss scale, the overflow check, and its all-reduce over a process group."""

IS_BOOKKEEPING = True  # see support/script_frames.py
