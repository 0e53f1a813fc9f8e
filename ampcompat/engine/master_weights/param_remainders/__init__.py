"""``store_param_remainders=True``: between steps, masters are stored as what their bfloat16 weights lack of them."""

IS_BOOKKEEPING = True  # see support/script_frames.py
