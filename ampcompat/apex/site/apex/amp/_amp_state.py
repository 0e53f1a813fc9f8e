"""The live state of amp: this module is itself the object ``_amp_state`` (see ``ampcompat.apex.state_view``)."""

import sys

from ampcompat.amp import master_params
from ampcompat.apex.state_view import AmpStateModule

sys.modules[__name__].__class__ = AmpStateModule
