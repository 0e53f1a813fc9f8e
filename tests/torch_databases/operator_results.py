"""What the operators of torch's database give under a cast backend, and how that differs from what it should be."""

import collections
import contextlib
import functools
import os

import pytest
import torch
from databases import load
from operator_calls import Operator, converted, places, widened

from ampcompat.engine.casting import BACKENDS, choose
from ampcompat.errors import AmpValueError
from ampcompat.opt_levels import BFLOAT16, HALF
from ampcompat.support.patching import PatchStack
from ampcompat.support.torch_compat import features

PAIRS = {"O1": HALF, "O4": BFLOAT16}
SAMPLES = int(os.environ.get("TORCH_DATABASE_SAMPLES", "2"))
FAILS, WARNS, DTYPES, VALUES, GRADIENTS = "fails", "warns", "dtypes", "values", "gradients"

#: One sample of an operator in one dtype, with what torch gives for it.
Case = collections.namedtuple("Case", "operator inputs sample autocast references")
#: The results in float64, of inputs as they are and of inputs that are rounded to half; the result in float32.
References = collections.namedtuple("References", "wide rounded plain")


def skip_where_unavailable(level, *backends):
    """Skip a test where a backend cannot cast to the level's dtype here."""
    for name in backends:
        try:
            choose(features.read(), name, PAIRS[level])
        except AmpValueError as error:
            pytest.skip(str(error))


@functools.lru_cache(maxsize=None)
def operators():
    """Return the operators of the database that take float32, each with its first samples."""
    database = load("common_methods_invocations", "op_db")
    known_places = places()
    infos = [info for info in database if torch.float32 in info.dtypes]
    found = [Operator(info, known_places) for info in infos]
    return [(each, each.samples(SAMPLES)) for each in found]


def autocast(low):
    """Return torch.autocast to a dtype on the CPU, or no context where torch has none."""
    has_it = low in features.autocast_dtypes("cpu")
    return torch.autocast("cpu", dtype=low) if has_it else contextlib.nullcontext()


@functools.lru_cache(maxsize=None)
def _without_half():
    """Return for each operator what it gives for each sample: [(in float64, in float32)]."""
    return [[_wide_and_plain(operator, sample) for sample in samples] for operator, samples in operators()]


def _wide_and_plain(operator, sample):
    return operator.called(widened(sample)), operator.called(converted(sample, torch.float32))


@functools.lru_cache(maxsize=None)
def cases(level):
    """Return the cases that torch.autocast runs (or torch, without it), with float32 and with half inputs."""
    low, found = PAIRS[level].low, []
    for (operator, samples), without_half in zip(operators(), _without_half()):
        for sample, (wide, plain) in zip(samples, without_half):
            half = converted(sample, low)
            rounded, plain_of_half = _wide_and_plain(operator, half)
            for inputs, given, references in (
                ("float32", sample, References(wide, rounded, plain)),
                ("half", half, References(rounded, rounded, plain_of_half)),
            ):
                with autocast(low):
                    found.append(Case(operator, inputs, given, operator.called(given), references))
    return [case for case in found if case.autocast.error is None]


@functools.lru_cache(maxsize=None)
def results(level, backend):
    """Return what a backend gives for every case of ``cases(level)``."""
    expected = cases(level)  # before anything is replaced
    with PatchStack() as patches:
        opened = BACKENDS[backend](PAIRS[level])
        opened.open(patches)
        found = []
        for case in expected:
            found.append(case.operator.called(case.sample))
            opened.clear_cache()
    return found


def differences_from_torch(level, backend):
    """Return {(what differs, operator, inputs): sentence} of a backend against torch.autocast and against float64."""
    found = {}
    for case, result in zip(cases(level), results(level, backend)):
        for what, sentence in _differences(case, result, PAIRS[level].low):
            found.setdefault((what, case.operator.name, case.inputs), sentence)
    return found


def differences_of_backends(level):
    """Return {(DTYPES, operator, inputs): sentence}: where the backends give results of different dtypes."""
    found = {}
    for case, native, patched in zip(cases(level), results(level, "native"), results(level, "patched")):
        if native.error is None and patched.error is None and native.dtypes != patched.dtypes:
            sentence = f"native: {native.dtypes}, patched: {patched.dtypes}, autocast: {case.autocast.dtypes}"
            found.setdefault((DTYPES, case.operator.name, case.inputs), sentence)
    return found


def _differences(case, result, low):
    if result.error is not None:
        yield FAILS, result.error
        return
    new = result.warned - case.references.plain.warned - case.autocast.warned
    if new:
        yield WARNS, "; ".join(sorted(new))
    if any(each.error is not None for each in case.references) or case.operator.is_uninitialized:
        return
    if case.operator.name == "linalg.pinv.singular" and low not in features.autocast_dtypes("cpu"):
        return  # it inverts a product, which has another rank in half: there is no autocast to compare with
    for what in (VALUES, GRADIENTS):
        ours, references = getattr(result, what), [getattr(each, what) for each in case.references]
        if len({len(ours)} | {len(each) for each in references}) != 1:
            yield what, f"{len(ours)} instead of {len(references[0])}"
            continue
        for each in zip(ours, *references, getattr(case.autocast, what)):
            sentence = difference(*each, torch.finfo(low).eps)
            if sentence:
                yield what, sentence
                break


def difference(ours, wide, rounded, plain, autocast, epsilon):
    """Return how a tensor differs from its reference by more than half precision explains, or None.

    Allowed are four times what rounding the inputs changes, eight units of the last place of the largest value (of
    0.001 where all are smaller), and the error of torch.autocast, whose kernels run where the op table has no row.
    What plain float32 does not give as float64 does (random numbers, signs of singular vectors) is not compared.
    """
    if any(each is None for each in (ours, wide, rounded, plain)):
        return None if (ours is None) == (plain is None) else "no gradient, or one that should not be there"
    if ours.shape != wide.shape and plain.shape == wide.shape:
        return f"shape {tuple(ours.shape)} instead of {tuple(wide.shape)}"
    if not _is_floating(wide):
        same, comparable = (torch.equal(each.to(wide.dtype), wide) for each in (ours, plain))
        return "other integers, or other truth values" if comparable and not same else None
    finite = torch.isfinite(wide) & (wide.abs() <= torch.finfo(torch.float16).max / 2)
    if not finite.any():
        return None
    largest = wide[finite].abs().max().item()
    if not _distance(plain, wide, finite) <= 1e-3 * max(largest, 1e-3):
        return None
    allowed = 4 * _distance(rounded, wide, finite) + epsilon * (8 * largest + 0.01)
    if autocast is not None:
        allowed = max(allowed, 1.01 * _distance(autocast, wide, finite))
    error = _distance(ours, wide, finite)
    return None if error <= allowed else f"error {error:.3g}, allowed {allowed:.3g}, largest value {largest:.3g}"


def _is_floating(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def _distance(value, reference, finite):
    """Return the largest difference where the reference is finite: inf for another shape, and values not finite."""
    if value.shape != reference.shape:
        return float("inf")
    errors = (value.to(reference.dtype) - reference)[finite].abs()
    return errors.max().item() if torch.isfinite(errors).all() else float("inf")
