"""The lists of one namespace, live (see ``ampcompat.apex.state_view``): edit them before ``initialize``."""

import sys

from ampcompat.apex.state_view import OpListModule

sys.modules[__name__].__class__ = OpListModule
