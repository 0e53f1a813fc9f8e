"""The version of Apex's amp that this package corresponds to."""

VERSION = (0, 1, 0)
__version__ = ".".join(map(str, VERSION))
