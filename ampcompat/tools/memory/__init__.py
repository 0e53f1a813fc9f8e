"""Measure or estimate the memory of a training step, by kind."""
