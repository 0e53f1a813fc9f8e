"""Calls the op table's functions on sample arguments, and compares with the table's dtypes and float64 arithmetic.

A form is a row with one kind of inputs: all low dtype, all high dtype, or both alternating.
"""

import collections
import warnings

import torch

from ...engine import casting
from ...engine.casting import patch_targets
from ...engine.op_table import expansion
from ...errors import AmpError, AmpNotImplementedError
from ...opt_levels import BFLOAT16, HALF
from ...support.containers import BYTES, floating_tensors, tensors_in
from ...support.patching import PatchStack
from ...support.torch_compat import features
from ...support.torch_compat.torch_names import dtype_name
from .results import NOT_RUN, CheckResult
from .sample_arguments import CPU, KINDS, Device, Inputs, case_of
from .training import REPORT, first_line

EPS = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-22, torch.float64: 2.0**-50}

#: The outcomes of a form.
AGREES, DIFFERS, NOT_A_FORM = "agrees", "differs", "not a form"

Function = collections.namedtuple("Function", "owner row original")


def functions():
    """Return the table's functions that this torch has, as ``Function`` objects. Call it before opening a backend."""
    placed = patch_targets.place(expansion.rows())
    return [Function(owner, row, getattr(owner, row.name)) for owner, row in placed]


def dtype_by_rule(row, inputs, pair):
    """Return the table's dtype for floating-point results."""
    dtypes = [leaf.dtype for leaf in inputs.leaves]
    if row.rule in (expansion.FLOAT_IN_PLACE, expansion.FOLLOW_SELF):
        return dtypes[0]
    if row.rule == expansion.HALF:
        return pair.low
    if row.rule in (expansion.FLOAT, expansion.BANNED):
        return pair.high
    if row.rule in (expansion.PASSTHROUGH, expansion.FLOAT32_INSIDE):
        return dtypes[0]
    return max(dtypes, key=BYTES.get) if dtypes else pair.high


def called(function, row, inputs):
    """Call the function as the row's form requires: an in-place form gets a copy to write to."""
    args = inputs.args
    if row.rule in (expansion.FLOAT_IN_PLACE, expansion.FOLLOW_SELF):
        args = (args[0].clone(),) + tuple(args[1:])
    return inputs.device.call(function, args, inputs.kwargs)


def compare(backend, function, case, kind, pair, device=CPU):
    """Call one form under the casts of an open backend.

    Args:
        backend: the ``CastBackend``.
        function: a ``Function``.
        case: its ``sample_arguments.Case``.
        kind: one of ``KINDS``.
        pair: the ``DtypePair``.
        device: a ``Device``.

    Returns:
        (``AGREES``, ""), (``DIFFERS``, the problem) or (``NOT_A_FORM``, ""): a single tensor cannot be mixed.
    """
    row, wrapper = function.row, getattr(function.owner, function.row.name)
    with backend.paused():
        inputs = Inputs(case, kind, pair, device)
    if kind == "mixed" and (len(inputs.leaves) < 2 or row.rule == expansion.PASSTHROUGH):
        return NOT_A_FORM, ""
    if row.rule == expansion.BANNED and kind != "high":
        return _is_refused(wrapper, row, inputs)
    exact = _rounding_points(row, inputs, pair)
    result = called(wrapper, row, inputs)
    with backend.paused():
        reference = called(function.original, row, exact)
        problem = _dtype_problem(result, reference, dtype_by_rule(row, inputs, pair))
        if not problem and device.has_values and case.compares:
            problem = _value_problem(inputs, exact, result, reference)
    return (DIFFERS, problem) if problem else (AGREES, "")


def _is_refused(wrapper, row, inputs):
    try:
        called(wrapper, row, inputs)
    except AmpNotImplementedError:
        return AGREES, ""
    return DIFFERS, "a banned function was not refused"


def _rounding_points(row, inputs, pair):
    """Return float64 inputs with the values after the rule's casts."""
    exact, to = inputs.exact(), None
    if row.rule == expansion.HALF:
        to = pair.low
    elif row.rule == expansion.FOLLOW_SELF:
        to = inputs.leaves[0].dtype
    if to is not None:
        with torch.no_grad():
            for leaf in exact.leaves:
                leaf.copy_(leaf.to(to))
    return exact


def _dtype_problem(result, reference, dtype):
    results, references = list(tensors_in(result)), list(tensors_in(reference))
    if len(results) != len(references):
        return f"{len(results)} results instead of {len(references)}"
    for got, wanted in zip(results, references):
        follows = not wanted.is_floating_point() and not wanted.is_complex()
        expected = wanted.dtype if follows else dtype if got.is_floating_point() else got.dtype
        if got.dtype is not expected:
            return f"result {got.dtype} instead of {expected}"
    return None


def _value_problem(inputs, exact, result, reference):
    floating, expected = floating_tensors(result, []), floating_tensors(reference, [])
    for got, wanted in zip(floating, expected):
        # Without half kernels, Apex's own rows also round internally: one epsilon for each of a few operations.
        if got.shape != wanted.shape or not _close(got, wanted, got.dtype, 8):
            return f"values: {got} instead of {wanted}"
    return _gradient_problem(inputs, exact, floating, expected)


def _close(got, expected, dtype, factor):
    scale = expected.abs().max().clamp(min=1e-3) if expected.numel() else 1.0
    got = got.detach().cpu().double()
    return bool(((got - expected).abs() <= factor * EPS[dtype] * (scale + expected.abs())).all())


def _gradients(outputs, leaves, weights):
    # Not with autograd.grad: if there is no derivative, torch 1.3 cannot run checkpoints again after its error.
    torch.autograd.backward(outputs, weights)
    return [leaf.grad for leaf in leaves]


def _gradient_problem(inputs, exact, floating, expected):
    sources = [i for i, got in enumerate(floating) if got.requires_grad and expected[i].requires_grad]
    if not sources:
        return None
    weights = [torch.arange(1, expected[i].numel() + 1).double().reshape(expected[i].shape).sin() for i in sources]
    wanted = _gradients([expected[i] for i in sources], exact.leaves, weights)
    weights = [weight.to(floating[i].dtype).to(floating[i].device) for i, weight in zip(sources, weights)]
    got = _gradients([floating[i] for i in sources], inputs.leaves, weights)
    narrowest = min([leaf.dtype for leaf in inputs.leaves + floating], key=BYTES.get)
    for leaf, mine, reference in zip(inputs.leaves, got, wanted):
        if mine is None or reference is None:
            continue
        if mine.dtype is not leaf.dtype or not bool(torch.isfinite(mine).all()):
            return f"gradient dtype {mine.dtype} or not finite"
        if not _close(mine, reference, narrowest, 24):
            return f"gradient: {mine} instead of {reference}"
    return None


class Outcomes:
    """The outcomes of many forms.

    ``counts`` are numbers of forms by outcome; ``wrong`` and ``left_out`` are {(owner, name, kind): reason}.
    """

    def __init__(self):
        self.counts = collections.Counter()
        self.wrong, self.left_out = {}, {}


def compare_all(backend, table, pair, device, reason_to_leave_out):
    """Compare every form of a table under the casts of an open backend.

    Args:
        backend: the ``CastBackend``.
        table: the result of ``functions`` before the backend was opened.
        pair: its ``DtypePair``.
        device: a ``Device``.
        reason_to_leave_out: exception -> why the form cannot be called here, or None. A reason counts only if torch's
            own function also raises an error, in the dtypes after the casts.

    Returns:
        The ``Outcomes``.
    """
    outcomes = Outcomes()
    for function in table:
        case = case_of(function.row)
        for kind in KINDS if case is not None else ():
            key = (function.row.owner, function.row.name, kind)
            try:
                outcome, problem = compare(backend, function, case, kind, pair, device)
            except Exception as error:  # an error of a function is an outcome of its form
                reason = reason_to_leave_out(error)
                if reason and not _works_without_casts(backend, function, kind, pair, device):
                    outcomes.left_out[key] = reason
                    continue
                outcome, problem = DIFFERS, f"{type(error).__name__}: {first_line(error)}"
            outcomes.counts[outcome] += 1
            if problem:
                outcomes.wrong[key] = problem
    return outcomes


def _works_without_casts(backend, function, kind, pair, device):
    """Return whether torch's own function can be called forward and backward in the dtypes of its rule."""
    rule = function.row.rule
    if rule == expansion.HALF:
        kinds = ("low",)
    elif rule in (expansion.FLOAT, expansion.FLOAT_IN_PLACE, expansion.BANNED):
        kinds = ("high",)
    else:
        kinds = (kind,) if rule in (expansion.PASSTHROUGH, expansion.FLOAT32_INSIDE) else ("low", "high")
    try:
        with backend.paused():
            for each in kinds:
                inputs = Inputs(case_of(function.row), each, pair, device)
                results = floating_tensors(called(function.original, function.row, inputs), [])
                results = [result for result in results if result.requires_grad]
                if results:
                    torch.autograd.backward(results, [torch.ones_like(result) for result in results])
    except Exception:  # any error means that it does not work
        return False
    return True


#: The number of differing forms in the table; the JSON file has all of them.
SHOWN = 4
#: Parts of torch's messages about a missing kernel, gradient or function argument.
LACKING = (
    "not implemented",
    "not supported",
    "not support",
    "Could not run 'aten::",
    "and is now removed",
    "doesn't support",
    "expected scalar type",
    "requires compiling",
    "got an unexpected keyword argument",
    "must be Tensor, not tuple",
    "is not differentiable with respect to argument",
    "isDifferentiableType",  # torch.lu of 1.6 and 1.7, with gradients
)


def reason_to_leave_out(error):
    """Return the reason if an exception says that this torch has no kernel on the device, or None."""
    text = first_line(error)
    return "this torch has no kernel: " + text if any(words in text for words in LACKING) else None


def check_casts(device, quick=False):
    """Yield a row for each backend and low dtype: do the functions of the op table return the table's dtypes?

    Args:
        device: "cpu", "cuda", …
        quick: float16 only.
    """
    table = functions()
    for pair in (HALF,) if quick else (HALF, BFLOAT16):
        for name in casting.BACKENDS:
            case = f"{name}, {dtype_name(pair.low)}"
            try:
                casting.choose(features.read(), name, pair)
                torch.ones(2, 2, device=device).to(pair.low).add(1.0)
            except (AmpError, RuntimeError) as error:
                yield CheckResult("conformance", case, NOT_RUN, first_line(error))
                continue
            yield _row(case, _outcomes(name, pair, table, device), name)


def _outcomes(name, pair, table, device):
    backend = casting.BACKENDS[name](pair)
    backend.set_devices({device.partition(":")[0]})
    with PatchStack() as patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on deprecated names
        _turn_off_tf32(patches)  # results are compared with float64
        backend.open(patches)
        outcomes = compare_all(backend, table, pair, Device(device), reason_to_leave_out)
        with backend.paused():
            _leave_out_what_torch_does_wrong(outcomes, table, pair, Device(device))
    return outcomes


def _leave_out_what_torch_does_wrong(outcomes, table, pair, device):
    """Leave out the forms of functions that raise an error or give wrong values in float32, too, without casts."""
    for function in table:
        wrong = [key for key in outcomes.wrong if key[:2] == function.row.key]
        problem = _problem_without_casts(function, pair, device) if wrong else None
        for key in wrong if problem else ():
            outcomes.left_out[key] = "torch's own function is wrong here, too: " + problem
            outcomes.counts[DIFFERS] -= 1
            del outcomes.wrong[key]


def _problem_without_casts(function, pair, device):
    inputs = Inputs(case_of(function.row), "high", pair, device)
    exact = inputs.exact()
    try:
        results = [called(function.original, function.row, each) for each in (inputs, exact)]
        return _value_problem(inputs, exact, *results)
    except Exception as error:  # any error means that it does not work
        return first_line(error)


def _turn_off_tf32(patches):
    for library in (getattr(torch.backends.cuda, "matmul", None), torch.backends.cudnn):
        if hasattr(library, "allow_tf32"):
            patches.defer(setattr, library, "allow_tf32", library.allow_tf32)
            library.allow_tf32 = False


def _row(case, outcomes, name):
    wrong = {"{}.{} {}".format(*key): problem for key, problem in outcomes.wrong.items()}
    left_out = {"{}.{} {}".format(*key): reason for key, reason in outcomes.left_out.items()}
    found = f"{outcomes.counts[AGREES]} forms agree"
    if left_out:
        found += f", {len(left_out)} that torch cannot compute here"
    if wrong:
        shown = ["{}: {}".format(*each) for each in list(wrong.items())[:SHOWN]]
        rest = [f"and {len(wrong) - SHOWN} more, in the JSON file"] if len(wrong) > SHOWN else []
        found += ", {} differ: {}".format(len(wrong), "; ".join(shown + rest))
    other = "patched" if name == "native" else "native"
    advice = f"Use --backend {other} if that has no failure. {REPORT}"
    return CheckResult.of("conformance", case, not wrong, found, advice, wrong=wrong, left_out=left_out)
