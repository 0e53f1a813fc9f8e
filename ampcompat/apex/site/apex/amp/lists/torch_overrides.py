"""The lists of one namespace, live (see ``ampcompat.engine.amp_names``): edit them before ``initialize``."""

import sys

from ampcompat.engine.amp_names import OpListModule

sys.modules[__name__].__class__ = OpListModule
