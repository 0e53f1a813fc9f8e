"""Checks of the installed torch and of this machine's devices: ``ampcompat selftest``."""
