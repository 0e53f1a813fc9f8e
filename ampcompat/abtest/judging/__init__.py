"""Judges recorded runs: verdicts, differences, speed, time to target, and the recommended level."""
