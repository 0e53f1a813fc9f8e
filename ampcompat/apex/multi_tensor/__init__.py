"""Optimizer updates for lists of tensors, and Apex's own functions for such lists."""
