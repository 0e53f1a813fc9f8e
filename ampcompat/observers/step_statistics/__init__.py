"""``run --op-stats`` and ``run --stats-every``: calls of functions by dtype, and statistics of tensors."""
