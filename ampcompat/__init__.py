"""ampcompat: Apex's mixed-precision API on any PyTorch and any device.

Importing this package changes nothing: no patch, no alias, no print. ``amp`` is the door that scripts written for
Apex know; ``session``, ``current`` and ``reset`` are what Apex never had.
"""

__version__ = "0.1.0"
