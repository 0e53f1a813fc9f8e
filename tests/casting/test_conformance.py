"""Every row of the op table, in every form that torch has, on both backends, against float64 arithmetic."""

import collections
import concurrent.futures
import functools
import warnings

import pytest
import torch
from known_differences import KNOWN_DIFFERENCES
from opened import NATIVE, NO_NATIVE, PAIRS, SETTINGS

from ampcompat.casting import BACKENDS
from ampcompat.patching import PatchStack
from ampcompat.selftest.conformance import DIFFERS, NOT_A_FORM, compare, compare_all_plain, functions
from ampcompat.selftest.inputs import CPU, KINDS
from ampcompat.selftest.sample_arguments import BY_OWNER, case_of

#: Old torch lacks kernels for halves on the CPU, with casts or without: there, and only there, a form may be left out.
MAY_LACK_KERNELS = not hasattr(torch, "compile")
MISSING = (
    "not implemented",
    "not supported",
    "not support",
    "expected scalar type",
    "Expected object of scalar type",
    "unexpected keyword argument",
    "must be Tensor, not tuple",
)
FUNCTIONS = functions()
BY_NAME = collections.OrderedDict()
for _each in FUNCTIONS:
    _name = _each.row.name
    _plain = _name[:-1] if _name.endswith("_") and not _name.endswith("__") else _name
    BY_NAME.setdefault(_plain, []).append(_each)

#: (backend, dtype) -> {"agree", "known different", "no kernel"} -> number of rows times forms times kinds of inputs.
COUNTS = {}


@pytest.fixture(scope="module", autouse=True)
def counts_are_reported(request):
    """Print one line per backend and dtype when the module is done."""
    yield
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        for (backend, dtype), counts in sorted(COUNTS.items()):
            found = ", ".join("{} {}".format(number, what) for what, number in sorted(counts.items()))
            print("\nconformance of {} in {}: {}".format(backend, dtype, found))


def is_missing_kernel(error):
    if "is now removed" in str(error):  # torch keeps the names of some functions for the sake of this message
        return True
    return MAY_LACK_KERNELS and any(words in str(error) for words in MISSING)


def check_rows(name, backend_name, pair_name, run, known):
    """Compare every form of every row of a name with the table.

    Args:
        run: function -> what the function returns, called wherever the casts are to be.
        known: the name of the backend whose known differences count.
    """
    pair = PAIRS[pair_name]
    backend = BACKENDS[backend_name](pair)
    wrong, left_out = {}, []
    counts = COUNTS.setdefault((backend_name, pair_name), collections.Counter())
    with PatchStack() as patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on deprecated names
        backend.open(patches)
        for function in BY_NAME[name]:
            case = case_of(function.row)
            for kind in KINDS if case is not None else ():
                key = (known, pair_name) + function.row.key + (kind,)
                try:
                    outcome, problem = run(functools.partial(compare, backend, function, case, kind, pair))
                except (RuntimeError, TypeError) as error:
                    if not is_missing_kernel(error):
                        raise
                    left_out.append("{}: {}".format(key, error))
                    counts["no kernel"] += 1
                    continue
                if outcome == NOT_A_FORM:
                    continue
                counts["known different" if outcome == DIFFERS else "agree"] += 1
                if (outcome == DIFFERS) != (key in KNOWN_DIFFERENCES):
                    wrong[key] = problem or "agrees, but is listed as a known difference"
    if wrong:
        pytest.fail("\n".join("{}: {}".format(key, problem) for key, problem in wrong.items()))
    if left_out:
        pytest.skip("torch {} lacks kernels: {}".format(torch.__version__, left_out[0]))


@pytest.mark.parametrize("backend_name, pair_name", SETTINGS)
@pytest.mark.parametrize("name", BY_NAME)
def test_row_agrees_with_table(name, backend_name, pair_name):
    check_rows(name, backend_name, pair_name, lambda function: function(), known=backend_name)


#: Autocast is on in the main thread, in others it is not: there the wrappers cast alone, as the patched backend does.
THREADS = [name for name, rows in BY_NAME.items() if any("cpu" in each.row.native for each in rows)] if NATIVE else []


@pytest.mark.parametrize("name", THREADS or [NO_NATIVE])
def test_row_that_autocast_covers_agrees_with_table_in_other_threads(name):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        check_rows(name, *NATIVE[0], run=lambda function: pool.submit(function).result(), known="patched")


def test_every_row_has_sample_arguments():
    assert [each.row.key for each in FUNCTIONS if case_of(each.row) is None and each.row.key not in BY_OWNER] == []


@pytest.mark.parametrize("pair_name", [pair for _, pair in NATIVE] or [NO_NATIVE])
def test_rows_said_to_be_covered_by_cpu_autocast_are(pair_name):
    if not hasattr(torch, "get_autocast_dtype"):
        pytest.skip("before torch 2.4 the native backend trusts no coverage and wraps every row")
    covered = [each for each in FUNCTIONS if "cpu" in each.row.native and not each.row.no_nested_casts]
    assert len(covered) > 30
    pair = PAIRS[pair_name]
    with warnings.catch_warnings(), torch.autocast("cpu", dtype=pair.low):
        warnings.simplefilter("ignore")
        outcomes = compare_all_plain(covered, pair, CPU, reason_to_leave_out=lambda error: None)
    assert outcomes.wrong == {}
