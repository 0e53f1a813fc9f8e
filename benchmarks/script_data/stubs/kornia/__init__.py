"""Stand-in for ``kornia`` before 0.6."""
