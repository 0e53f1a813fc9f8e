"""For configs of mmcv's: ``custom_imports = dict(imports=["ampcompat.mmcv.in_configs"])`` calls ``install``.

Owns: nothing.
Must not touch: anything by itself.
The surprise: importing it installs, for a config has no other way to call a function; ``undo()`` puts mmcv's own back.
"""

from .installation import install

undo = install()
