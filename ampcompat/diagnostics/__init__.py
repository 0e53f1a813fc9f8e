"""What runs a script and reports on it: ``audit``, ``forecast``, ``estimate``; and ``selftest``."""
