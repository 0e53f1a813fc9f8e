"""A plugin of pytest that runs tests which name no device on xla: the default device, seeded as the CPU is.

Each operation is computed when it is called (eager mode), since no test does the same thing often enough for a graph.
"""

import functools

import pytest
import torch
import torch_xla.core.xla_model as xla_model
from torch_xla.experimental import eager_mode

from . import second_device  # noqa: F401

#: Why some tests cannot hold there -> their names, or functions that they are parametrized with.
KNOWN = {
    "tensors of xla have no address": "through_an_address test_ties_and_extra_state_are_kept "
    "test_weights_that_happen_to_be_equal_are_not_tied",
    "tensors of xla are no arrays of numpy": "through_numpy double_memory "
    "test_weights_written_through_numpy_later_on_are_stepped_on "
    "test_weights_written_before_the_first_step_are_stepped_on "
    "test_groups_added_later_are_compared_before_their_first_step",
    "torch's profiler counts no memory of xla": ""
    "test_between_block_and_step_a_param_holds_two_half_gradients_more_than_its_masters_if_it_is_read",
    "torch_xla has no sparse tensors": "test_sparse_gradients_are_unscaled_summed_and_stepped "
    "test_a_sparse_gradient_is_added_to_one_that_was_set_aside test_an_overflow_in_a_sparse_gradient_is_seen",
    "torch unpickles no tensors of xla with requires_grad that are no Parameters: masters": ""
    "test_an_optimizer_pickles "
    "test_state_of_a_pickled_optimizer_is_read_by_params "
    "test_a_pickled_model_and_its_optimizer_train_on "
    "test_a_model_and_its_optimizer_pickled_in_a_session_train_plainly_without_one_or_say_why_not",
    "torch_xla has no gradient of a batch norm in eval mode": "test_what_a_script_writes_to_masters_is_in_the_next_"
    "forward_pass_and_in_the_state_dict",
    "torch_xla updates the running variance with the biased one": "test_running_statistics_are_float32_and_change_by_"
    "less_than_half_can_hold",
    "half is emulated on a CPU only": "test_a_copy_adds_up_in_float32_on_a_cpu_within_its_session_and_after_it",
    "foreach functions are replaced there": "test_other_levels_patch_no_functions_but_those_that_refuse_half_arguments",
    "it has a default device of its own": "test_what_is_written_stays_under_a_default_device",
    "threads have their own default device": "test_functions_cast_everywhere_in_the_process",
}
_REASONS = {name: reason for reason, names in KNOWN.items() for name in names.split()}

eager_mode(True)
torch.set_default_device("xla")
# With a default device torch_xla's own GRU ends the process: its loop reads a constant of the CPU.
torch.nn.GRU = torch.nn.modules.rnn.GRU
_seed_others = torch.manual_seed


@functools.wraps(_seed_others)
def _manual_seed(seed):
    xla_model.set_rng_state(int(seed) % 2**63)
    return _seed_others(seed)


torch.manual_seed = _manual_seed


@pytest.fixture(autouse=True)
def seeded(torch_is_left_untouched):
    """Begin every test with the same random numbers."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items):
    """Skip what cannot hold."""
    for item in items:
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        for name in (item.originalname, *(getattr(param, "__name__", None) for param in params)):
            if name in _REASONS:
                item.add_marker(pytest.mark.skip(reason=_REASONS[name]))
