"""``initialize`` and the opt levels."""

from ampcompat.amp import initialize, load_state_dict, O0, O1, O2, O3, O4, O5, opt_levels, Properties, state_dict
