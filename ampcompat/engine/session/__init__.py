"""Sessions: initialize, backward passes, gradient accumulation, and the state of the process."""
