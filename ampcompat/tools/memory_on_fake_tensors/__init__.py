"""Predict the memory of a training step, including activations, by running it on fake tensors."""
