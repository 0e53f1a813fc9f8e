"""Every row of the op table, in every form that torch has, on both backends, against float64 arithmetic."""

import concurrent.futures

import pytest
import torch
from opened import NATIVE, each_setting, outcomes_of

from ampcompat.diagnostics.selftest.conformance import AGREES, LACKING, functions
from ampcompat.diagnostics.selftest.sample_arguments import BY_OWNER, CPU, case_of
from ampcompat.engine.op_table import expansion
from ampcompat.support.torch_compat import features


def lacks_half_kernels():
    """Return whether this torch lacks kernels for halves on the CPU: ``trace`` is one of the last that it got."""
    try:
        torch.trace(torch.ones(2, 2, dtype=torch.float16))
    except RuntimeError:
        return True
    return False


#: Torch that lacks kernels for halves lacks them with casts or without: there, and only there, a form may be left out.
MAY_LACK_KERNELS = lacks_half_kernels()
MISSING = (*LACKING, "Expected object of scalar type")
#: Known differences: (backend, low dtype, owner, name, inputs). One that agrees after all fails the test.
KNOWN_DIFFERENCES = set()
if features.is_version_within(oldest="1.10", newest="1.11"):  # there autocast computes these in float32
    owners, names = ("torch", "torch.Tensor"), ("dot", "vdot")
    KNOWN_DIFFERENCES.update(("native", "bfloat16", owner, name, "low") for owner in owners for name in names)
FUNCTIONS = functions()


def reason_to_leave_out(error):
    """Return why a form cannot be called with this torch, or None."""
    is_gone = "is now removed" in str(error)  # torch keeps the names of some functions for the sake of this message
    is_missing = isinstance(error, (RuntimeError, TypeError)) and any(words in str(error) for words in MISSING)
    return str(error) if is_gone or (MAY_LACK_KERNELS and is_missing) else None


def check(setting, table, *call, known=None):
    """Compare a table with the backend of a setting; the known differences are those of ``known``, or its own."""
    outcomes = outcomes_of(setting, table, CPU, reason_to_leave_out, *call)
    expected = {key[2:] for key in KNOWN_DIFFERENCES if key[:2] == (known or setting[0], setting[1])}
    assert {key: problem for key, problem in outcomes.wrong.items() if key not in expected} == {}
    assert expected - set(outcomes.wrong) == set(), "listed as known differences, but they agree"
    return outcomes


@each_setting
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
