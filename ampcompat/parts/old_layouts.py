"""Read what Apex's older wrappers saved in an optimizer's place.

Owns: the layout of ``FP16_Optimizer``: the inner optimizer's state dict, and the masters as a list per group.
Must not touch: the optimizer's own layout, which is torch's.
The surprise: its masters are matched by their order within the groups, with the masters of now or, at levels without
masters, with all params of the group; so a checkpoint from ``FP16_Optimizer`` goes on at any level.
"""

import torch

from ..errors import AmpError

INNER, MASTERS = "optimizer_state_dict", "fp32_from_fp16"
FLAT = "fp32_groups_flat"  # of the FP16_Optimizer of before 2019, which kept each group as one long vector


def inner_state(state_dict):
    """Return the state dict that the optimizer itself understands."""
    return state_dict[INNER] if isinstance(state_dict, dict) and INNER in state_dict else state_dict


def targets(adapter, state_dict):
    """Return (param, saved master) pairs for what ``state_dict`` holds beside the optimizer's own state.

    Raises:
        AmpError: the saved masters are of other params than those of the optimizer.
    """
    if isinstance(state_dict, dict) and FLAT in state_dict:
        raise AmpError(
            "The checkpoint has {!r}: an FP16_Optimizer of before 2019 saved it, which kept all params of a group as one "
            "vector. Load the model's weights from it, and let the optimizer start afresh.".format(FLAT)
        )
    found = []
    groups = state_dict.get(MASTERS, ()) if inner_state(state_dict) is not state_dict else ()
    for saved, group, pairs in zip(groups, adapter.optimizer.param_groups, adapter.pairs_by_group()):
        masters = [pair.master for pair in pairs]
        choices = [each for each in (masters, list(group["params"])) if _shapes(each) == _shapes(saved)]
        if not choices:
            raise AmpError(
                "The checkpoint of an FP16_Optimizer has masters of shapes {} where this optimizer has {}. To load what "
                "the inner optimizer saved without them, pass checkpoint['{}'].".format(
                    _shapes(saved), _shapes(masters or group["params"]), INNER
                )
            )
        found += zip(choices[0], saved)
    return found


def copy_masters(adapter, found):
    """Copy saved masters (see ``targets``) into params, and round them into the model."""
    if found:
        with torch.no_grad():
            for param, saved in found:
                param.copy_(saved)
        adapter.masters_to_models()


def _shapes(params):
    return [tuple(param.shape) for param in params]
