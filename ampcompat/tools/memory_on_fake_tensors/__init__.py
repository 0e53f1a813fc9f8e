"""Predict the memory of a training step, activations included, by running it on fake tensors."""
