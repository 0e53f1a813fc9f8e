"""Runs the levels of an A/B comparison: in this process, in child processes, on clusters."""
