"""What ``run --op-stats`` and ``run --stats-every`` count: calls of functions by dtype, and statistics of tensors."""
