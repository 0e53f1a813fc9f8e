"""What is behind the commands ``audit``, ``forecast``, ``estimate``, ``selftest`` and ``checkpoint``."""
