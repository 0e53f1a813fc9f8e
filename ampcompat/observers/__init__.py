"""What observes a training step: its calls, places and values, why steps are skipped, statistics, and memory."""
