"""Apex's ``amp``: the names of ``ampcompat.amp``, with the submodules that users of Apex import.

``from apex import amp`` and ``from ampcompat import amp`` share functions and state. ``amp._amp_state`` is both a
module and the state object (see ``ampcompat.engine.amp_names``).
"""

from ampcompat.amp import (
    O0,
    O1,
    O2,
    O3,
    O4,
    O5,
    Properties,
    bfloat16_function,
    disable_casts,
    float_function,
    half_function,
    init,
    initialize,
    load_state_dict,
    master_params,
    opt_levels,
    promote_function,
    register_bfloat16_function,
    register_float_function,
    register_half_function,
    register_promote_function,
    scale_loss,
    state_dict,
    step_was_skipped,
)

from . import (
    __version__,
    _amp_state,
    _initialize,
    _process_optimizer,
    amp,
    compat,
    frontend,
    handle,
    lists,
    opt,
    rnn_compat,
    scaler,
    utils,
)
