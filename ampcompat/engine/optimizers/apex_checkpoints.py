"""Load optimizer checkpoints that Apex's ``FP16_Optimizer`` wrote.

Such a checkpoint holds the inner optimizer's state dict, and the master weights as one list per param group. They are
matched by their order within the groups; at levels without master weights, with all params of the group.
"""

from ...errors import AmpError
from ...support.torch_compat.thread_blocks import grad_enabled

INNER, MASTERS = "optimizer_state_dict", "fp32_from_fp16"
FLAT = "fp32_groups_flat"  # of the FP16_Optimizer from before 2019, which kept each group as one long vector


def inner_state(state_dict):
    """Return the part of ``state_dict`` that the optimizer's own ``load_state_dict`` accepts."""
    return state_dict[INNER] if isinstance(state_dict, dict) and INNER in state_dict else state_dict


def targets(record, state_dict):
    """Return (param, saved master) pairs for the master weights that ``state_dict`` holds.

    Raises:
        AmpError: the shapes of the saved masters are not those of the optimizer's params.
    """
    if isinstance(state_dict, dict) and FLAT in state_dict:
        raise AmpError(
            f"The checkpoint has {FLAT!r}: an FP16_Optimizer from before 2019 saved it, which kept all params of a "
            "group as one vector. Load the model's weights from it, and do not load the optimizer's state."
        )
    found = []
    groups = state_dict.get(MASTERS, ()) if inner_state(state_dict) is not state_dict else ()
    for saved, group, pairs in zip(groups, record.optimizer.param_groups, record.masters.pairs_by_group()):
        masters = [pair.master for pair in pairs]
        choices = [each for each in (masters, list(group["params"])) if _shapes(each) == _shapes(saved)]
        if not choices:
            raise AmpError(
                "The checkpoint of an FP16_Optimizer has masters of shapes {} where this optimizer has {}. To load "
                "what the inner optimizer saved without them, pass checkpoint['{}'].".format(
                    _shapes(saved), _shapes(masters or group["params"]), INNER
                )
            )
        found += zip(choices[0], saved)
    return found


def copy_masters(record, found):
    """Copy saved masters (see ``targets``) into params, and copy the masters to the model, rounded."""
    if found:
        record.masters.refresh()
        with grad_enabled(False):
            for param, saved in found:
                param.copy_(saved)
        record.masters.round_into_models()


def _shapes(params):
    return [tuple(param.shape) for param in params]
