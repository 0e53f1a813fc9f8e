"""The float32 master weights of half params, and the gradients that belong to them."""

IS_BOOKKEEPING = True  # see support/script_frames.py
