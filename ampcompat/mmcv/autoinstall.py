"""Importing this calls ``install``; in a config: ``custom_imports = dict(imports=["ampcompat.mmcv.autoinstall"])``.

``undo()`` restores mmcv's own names.
"""

from .installation import install

undo = install()
