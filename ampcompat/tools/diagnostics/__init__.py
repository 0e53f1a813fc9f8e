"""Explain why steps were skipped: tensor statistics, activation hooks, a record of each overflow."""
