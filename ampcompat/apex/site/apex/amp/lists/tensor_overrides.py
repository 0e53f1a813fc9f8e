"""The lists of one namespace, live (see ``ampcompat.engine.amp_names.state_view``): edit them before ``initialize``."""

import sys

from ampcompat.engine.amp_names.state_view import OpListModule

sys.modules[__name__].__class__ = OpListModule
