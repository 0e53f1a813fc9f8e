"""Say why steps were skipped: tensor statistics, hooks on activations, a record of each overflow."""
