"""What the other packages share and PyTorch does not provide; nothing here knows of opt levels."""
