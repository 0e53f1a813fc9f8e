"""Every row of the op table, in every form that torch has, on both backends, against float64 arithmetic."""

import collections
import concurrent.futures
import functools
import warnings

import pytest
import torch
from conformance_cases import BY_OWNER, case_of
from known_differences import KNOWN_DIFFERENCES
from opened import NATIVE, NO_NATIVE, PAIRS, SETTINGS, setting_id

from ampcompat.casting import BACKENDS, patch_targets
from ampcompat.errors import AmpNotImplementedError
from ampcompat.op_table import rules
from ampcompat.patching import PatchStack

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
PLACED = patch_targets.place(rules.rows())
BY_NAME = collections.OrderedDict()
for _owner, _row in PLACED:
    _plain = _row.name[:-1] if _row.name.endswith("_") and not _row.name.endswith("__") else _row.name
    BY_NAME.setdefault(_plain, []).append((_owner, _row, getattr(_owner, _row.name)))

INPUTS = ("low", "high", "mixed")
NOT_A_FORM = object()  # one tensor cannot be mixed
NO_KERNEL = object()  # this torch cannot compute the function on these dtypes
EPS = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-22, torch.float64: 2.0**-50}
SIZES = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}


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


def mapped(function, value):
    """Apply a function to the floating tensors of nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: mapped(function, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(function, item) for item in value])
    return value


def tensors_in(value, found=None):
    found = [] if found is None else found
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, dict):
        tensors_in(list(value.values()), found)
    elif isinstance(value, (tuple, list)):
        for item in value:
            tensors_in(item, found)
    return found


def floats_in(value):
    return [tensor for tensor in tensors_in(value) if tensor.is_floating_point()]


class Inputs:
    """The arguments of one call as leaves, in the dtypes given by ``kind``."""

    def __init__(self, case, kind, pair):
        dtypes = {"low": [pair.low], "high": [pair.high], "mixed": [pair.high, pair.low]}[kind]
        self.leaves = []

        def leaf(tensor):
            new = tensor.to(dtypes[len(self.leaves) % len(dtypes)]).detach().requires_grad_(case.differentiable)
            self.leaves.append(new)
            return new

        self.args = mapped(leaf, tuple(case.make()))
        self.kwargs = mapped(leaf, dict(case.kwargs))

    def exact(self):
        """Return the same values as float64 leaves."""
        twin = object.__new__(Inputs)
        twin.leaves = []

        def leaf(tensor):
            new = tensor.detach().double().requires_grad_(tensor.requires_grad)
            twin.leaves.append(new)
            return new

        twin.args, twin.kwargs = mapped(leaf, self.args), mapped(leaf, self.kwargs)
        return twin


def dtype_by_rule(row, inputs, pair):
    """Return the dtype that the table gives to floating results."""
    dtypes = [leaf.dtype for leaf in inputs.leaves]
    if row.rule in (rules.FLOAT_IN_PLACE, rules.FOLLOW_SELF):
        return dtypes[0]
    if row.rule == rules.HALF:
        return pair.low
    if row.rule in (rules.FLOAT, rules.BANNED):
        return pair.high
    if row.rule in (rules.PASSTHROUGH, rules.FLOAT32_INSIDE):
        return dtypes[0]
    return max(dtypes, key=SIZES.get) if dtypes else pair.high


def is_in_place(row):
    return row.rule in (rules.FLOAT_IN_PLACE, rules.FOLLOW_SELF)


def called(function, row, inputs):
    """Call the function on what the row's form needs: an in-place form gets a copy to write to."""
    args = inputs.args
    if is_in_place(row):
        args = (args[0].clone(),) + tuple(args[1:])
    return function(*args, **inputs.kwargs)


def rounding_points(row, inputs, pair):
    """Return float64 inputs with the values that the rule's casts leave."""
    rounded = inputs.exact()
    to = None
    if row.rule == rules.HALF:
        to = pair.low
    elif row.rule == rules.FOLLOW_SELF:
        to = inputs.leaves[0].dtype
    if to is not None:
        with torch.no_grad():
            for leaf in rounded.leaves:
                leaf.copy_(leaf.to(to))
    return rounded


def is_missing_kernel(error):
    if "is now removed" in str(error):  # torch keeps the names of some functions for the sake of this message
        return True
    return MAY_LACK_KERNELS and any(words in str(error) for words in MISSING)


def close(got, expected, dtype, factor):
    scale = expected.abs().max().clamp(min=1e-3) if expected.numel() else 1.0
    return bool(((got.double() - expected).abs() <= factor * EPS[dtype] * (scale + expected.abs())).all())


def compare(setting, row, function, wrapper, case, kind, pair):
    """Return what is wrong with one form, or None."""
    inputs = Inputs(case, kind, pair)
    if kind == "mixed" and len(inputs.leaves) < 2:
        return NOT_A_FORM
    if row.rule == rules.BANNED and kind != "high":
        with pytest.raises(AmpNotImplementedError):
            called(wrapper, row, inputs)
        return None
    if row.rule == rules.PASSTHROUGH and kind == "mixed":
        return NOT_A_FORM
    exact = rounding_points(row, inputs, pair)
    result = called(wrapper, row, inputs)
    dtype = dtype_by_rule(row, inputs, pair)
    with setting.paused():
        return differences(row, inputs, exact, result, called(function, row, exact), dtype, case)


def differences(row, inputs, exact, result, reference, dtype, case):
    floating, expected = floats_in(result), floats_in(reference)
    if len(tensors_in(result)) != len(tensors_in(reference)):
        return "another number of results"
    for got, wanted in zip(tensors_in(result), tensors_in(reference)):
        if not wanted.is_floating_point() and not wanted.is_complex() and got.dtype is not wanted.dtype:
            return "result {} instead of {}".format(got.dtype, wanted.dtype)
    for got in floating:
        if got.dtype is not dtype:
            return "result {} instead of {}".format(got.dtype, dtype)
    if not case.compares:
        return None
    narrowest = min([leaf.dtype for leaf in inputs.leaves] + [dtype], key=SIZES.get)
    for got, wanted in zip(floating, expected):
        # Without half kernels Apex's own rows also round inside: one epsilon for each of a few operations.
        if got.shape != wanted.shape or not close(got, wanted, dtype, 8):
            return "values: {} instead of {}".format(got, wanted)
    return gradient_differences(inputs, exact, floating, expected, narrowest)


def gradients(outputs, leaves, weights):
    # Not by autograd.grad: where a function has no derivative its error leaves torch 1.3 unable to run checkpoints.
    torch.autograd.backward(outputs, weights)
    return [leaf.grad for leaf in leaves]


def gradient_differences(inputs, exact, floating, expected, narrowest):
    sources = [i for i, got in enumerate(floating) if got.requires_grad and expected[i].requires_grad]
    if not sources:
        return None
    weights = [torch.arange(1, expected[i].numel() + 1).double().reshape(expected[i].shape).sin() for i in sources]
    wanted = gradients([expected[i] for i in sources], exact.leaves, weights)
    grads = [weight.to(floating[i].dtype) for i, weight in zip(sources, weights)]
    got = gradients([floating[i] for i in sources], inputs.leaves, grads)
    for leaf, mine, reference in zip(inputs.leaves, got, wanted):
        if mine is None or reference is None:
            continue
        if mine.dtype is not leaf.dtype or not bool(torch.isfinite(mine).all()):
            return "gradient dtype {} or not finite".format(mine.dtype)
        if not close(mine, reference, narrowest, 24):
            return "gradient: {} instead of {}".format(mine, reference)
    return None


def check_rows(setting, names, run=lambda function: function(), known=None):
    """Open the backend of a setting once; compare every form of every row of these names with the table.

    Args:
        run: function -> what the function returns, called wherever the casts are to be.
        known: the name of the backend whose known differences count; by default the setting's own.
    """
    backend_name, pair_name = setting
    backend = BACKENDS[backend_name](PAIRS[pair_name])
    counts, wrong = COUNTS.setdefault(setting, collections.Counter()), collections.OrderedDict()
    with PatchStack() as patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on deprecated names
        backend.open(patches)
        for owner, row, function in (placed for name in names for placed in BY_NAME[name]):
            case = case_of(row)
            for kind in INPUTS if case is not None else ():
                key = (known or backend_name, pair_name, row.owner, row.name, kind)
                form = functools.partial(compare, backend, row, function, getattr(owner, row.name), case, kind)
                problem = problem_of(functools.partial(run, functools.partial(form, PAIRS[pair_name])))
                if problem is NOT_A_FORM:
                    continue
                counts["no kernel" if problem is NO_KERNEL else "known different" if problem else "agree"] += 1
                if problem is not NO_KERNEL and bool(problem) != (key in KNOWN_DIFFERENCES):
                    wrong[key] = problem or "agrees, but is listed as a known difference"
    assert not wrong, "\n".join("{}: {}".format(key, problem) for key, problem in wrong.items())


def problem_of(comparison):
    """Return what a comparison returns, or says as it raises; NO_KERNEL where this torch lacks one."""
    try:
        return comparison()
    except (RuntimeError, TypeError) as error:
        return NO_KERNEL if is_missing_kernel(error) else "raised {!r}".format(error)


@pytest.mark.parametrize("setting", SETTINGS, ids=setting_id)
def test_every_row_agrees_with_the_table(setting):
    check_rows(setting, BY_NAME)
    assert COUNTS[setting]["agree"] > 300


def test_rows_that_autocast_covers_agree_with_the_table_in_other_threads():
    if not NATIVE:
        pytest.skip("this torch has no autocast for the CPU")
    # Autocast is on in the main thread only: in others the wrappers cast alone, as the patched backend does.
    names = [name for name, rows in BY_NAME.items() if any("cpu" in row.native for _, row, _ in rows)]
    assert len(names) > 30
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        check_rows(NATIVE[0], names, run=lambda function: pool.submit(function).result(), known="patched")


def test_every_row_has_sample_arguments():
    assert [row.key for _, row in PLACED if case_of(row) is None and row.key not in BY_OWNER] == []


def autocasts_alike(row, function, pair):
    """Return whether plain autocast on the CPU gives the dtypes of the table, for every kind of inputs."""
    case = case_of(row)
    for kind in INPUTS:
        inputs = Inputs(case, kind, pair)
        if kind == "mixed" and len(inputs.leaves) < 2:
            continue
        with torch.autocast("cpu", dtype=pair.low):
            result = called(function, row, inputs)
        if any(got.dtype is not dtype_by_rule(row, inputs, pair) for got in floats_in(result)):
            return False
    return True


@pytest.mark.parametrize("pair_name", [pair for _, pair in NATIVE] or [NO_NATIVE])
def test_rows_said_to_be_covered_by_cpu_autocast_are(pair_name):
    if not hasattr(torch, "get_autocast_dtype"):
        pytest.skip("before torch 2.4 the native backend trusts no coverage and wraps every row")
    covered = [(owner, row) for owner, row in PLACED if "cpu" in row.native and not row.no_nested_casts]
    assert len(covered) > 30
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for owner, row in covered:
            if not autocasts_alike(row, getattr(owner, row.name), PAIRS[pair_name]):
                wrong.append(row.key)
    assert wrong == []
