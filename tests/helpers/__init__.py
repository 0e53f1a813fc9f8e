"""What test files share. Import it as ``from helpers import forked``; ``pythonpath`` in pyproject.toml finds it."""
