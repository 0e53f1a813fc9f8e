"""The live state of amp: this module is the object ``_amp_state``, see ``ampcompat.engine.amp_names``."""

import sys

from ampcompat.amp import master_params
from ampcompat.engine.amp_names import AmpStateModule

sys.modules[__name__].__class__ = AmpStateModule
