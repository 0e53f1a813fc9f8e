"""Every row of the op table, in every form that torch has, on both backends, against float64 arithmetic."""

import concurrent.futures
import warnings

import pytest
import torch
from known_differences import KNOWN_DIFFERENCES
from opened import NATIVE, PAIRS, SETTINGS, setting_id

from ampcompat.engine.casting import BACKENDS
from ampcompat.engine.op_table import expansion
from ampcompat.support.patching import PatchStack
from ampcompat.tools.selftest.conformance import AGREES, compare_all, functions
from ampcompat.tools.selftest.sample_arguments import BY_OWNER, CPU, case_of


def lacks_half_kernels():
    """Return whether this torch lacks kernels for halves on the CPU: ``trace`` is one of the last that it got."""
    try:
        torch.trace(torch.ones(2, 2, dtype=torch.float16))
    except RuntimeError:
        return True
    return False


#: Torch that lacks kernels for halves lacks them with casts or without: there, and only there, a form may be left out.
MAY_LACK_KERNELS = lacks_half_kernels()
MISSING = (
    "not implemented",
    "not supported",
    "not support",
    "expected scalar type",
    "Expected object of scalar type",
    "unexpected keyword argument",
    "must be Tensor, not tuple",
    "is not differentiable with respect to argument",
    "isDifferentiableType",  # torch.lu of 1.6 and 1.7, with gradients
)
FUNCTIONS = functions()
LINES = []


@pytest.fixture(scope="module", autouse=True)
def counts_are_reported(request):
    """Print one line per setting when the module is done."""
    yield
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(LINES))


def reason_to_leave_out(error):
    """Return why a form cannot be called with this torch, or None."""
    is_gone = "is now removed" in str(error)  # torch keeps the names of some functions for the sake of this message
    is_missing = isinstance(error, (RuntimeError, TypeError)) and any(words in str(error) for words in MISSING)
    return str(error) if is_gone or (MAY_LACK_KERNELS and is_missing) else None


def check(setting, table, call=lambda function, *args: function(*args), known=None):
    """Open the backend of a setting; compare every form of every row of a table with it.

    Args:
        setting: (backend, pair of dtypes) by their names.
        table: what ``functions`` returns, or a part of it.
        call: function, arguments -> what the function returns, called wherever the casts are to be.
        known: the name of the backend whose known differences count; by default the setting's own.
    """
    name, pair = setting
    backend = BACKENDS[name](PAIRS[pair])
    backend.set_devices({"cpu"})
    with PatchStack() as patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on deprecated names
        backend.open(patches)
        outcomes = call(compare_all, backend, table, PAIRS[pair], CPU, reason_to_leave_out)
    where = setting_id(setting) + (" in another thread" if known else "")
    counts = (where, outcomes.counts[AGREES], len(outcomes.wrong), len(outcomes.left_out))
    LINES.append("conformance of {} on the CPU: {} forms agree, {} differ, {} without a kernel".format(*counts))
    expected = {key[2:] for key in KNOWN_DIFFERENCES if key[:2] == (known or name, pair)}
    wrong = {key: problem for key, problem in outcomes.wrong.items() if key not in expected}
    assert wrong == {}
    assert expected - set(outcomes.wrong) == set(), "listed as known differences, but they agree"
    return outcomes


@pytest.mark.parametrize("setting", SETTINGS, ids=setting_id)
def test_every_row_agrees_with_the_table(setting):
    assert check(setting, FUNCTIONS).counts[AGREES] > 300


def test_rows_agree_with_the_table_in_other_threads_which_have_no_autocast():
    if not NATIVE:
        pytest.skip("this torch has no autocast for the CPU")
    # Autocast is on in the main thread only: in others the wrappers cast alone, as the patched backend does.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        table = [each for each in FUNCTIONS if each.row.rule == expansion.HALF] + FUNCTIONS[::5]
        found = check(NATIVE[0], table, lambda *args: pool.submit(*args).result(), known="patched")
    assert found.counts[AGREES] > 90


def test_every_row_has_sample_arguments():
    assert [each.row.key for each in FUNCTIONS if case_of(each.row) is None and each.row.key not in BY_OWNER] == []
