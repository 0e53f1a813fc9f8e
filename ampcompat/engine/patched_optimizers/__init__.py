"""What ``amp.initialize`` does to optimizers: master weights, the replaced ``step``, unscaled gradients."""

IS_BOOKKEEPING = True  # see support/script_frames.py
