"""``initialize`` and the opt levels."""

from ampcompat.amp import O0, O1, O2, O3, O4, O5, Properties, initialize, load_state_dict, opt_levels, state_dict
