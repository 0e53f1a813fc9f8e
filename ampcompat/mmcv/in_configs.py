"""For configs of mmcv's: ``custom_imports = dict(imports=["ampcompat.mmcv.in_configs"])`` calls ``install``.

Owns: nothing.
Must not touch: anything by itself.
The surprise: importing it installs. A config has no other way to call a function.
"""

from .installation import install

install()
