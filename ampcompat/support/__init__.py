"""Shared code that PyTorch does not provide; it does not depend on opt levels."""
