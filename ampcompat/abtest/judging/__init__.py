"""Judges recorded runs: verdicts, differences, speed, time to target, and what to take."""
