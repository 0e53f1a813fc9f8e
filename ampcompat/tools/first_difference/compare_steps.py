"""Compares a step with the reference's, operation by operation: the error that each introduces and inherits.

See the package's docstring for the formulas.
"""

import math

import torch

from ...engine.op_table import expansion
from ...support.torch_compat.torch_names import dtype_name
from . import descriptions
from .alignment import aligned, upstream, without_common
from .descriptions import described, shapes_of
from .op_errors import SAME, OpErrors, results
from .repeated_ops import is_half
from .rounding import in_units, is_finite, is_rounding_of
from .shadows import Shadows, coarsest
from .step_record import COMPUTE, COPY, END, OUTSIDE

#: The error that rounding explains if other operations replace an operation, in units of the dtype, in addition to
#: twice the error caused by rounded inputs.
CHAIN = 0.6

#: Values from before the step that differ by more than this share are different data, not an older copy.
LARGEST_DRIFT = 0.5

#: The number of operations in the report.
LISTED = 10


def compare(reference, reference_store, compared, store, rules, low=None):
    """Return the differences of two steps for JSON; see ``abtest.report_data``.

    Args:
        reference, compared: ``StepRecord``.
        reference_store, store: their ``TensorStore``.
        rules: ``{function: rule}`` of the op table if functions cast in the compared step.
        low: the half dtype of its level, if it has one.
    """
    return _Comparison(reference, reference_store, compared, store, rules, low).result()


class _Comparison:
    def __init__(self, reference, reference_store, compared, store, rules, low):
        self._reference, self._reference_store = reference, reference_store
        self._compared, self._store, self._rules = compared, store, rules
        self._pairs = aligned(reference, compared)
        self._reference_paired = frozenset(self._pairs.values())
        params = {}
        for value in reference.values:
            if value.param is not None and value.kind == OUTSIDE and value.param not in params:
                params[value.param] = reference_store.get(value.key)
        self._shadows = Shadows(compared, store, params)
        self._low = low or coarsest([value.dtype for value in compared.values])
        self._faults, self._overflows, self._measured, self._parted = [], [], [], None
        self._checked = self._unchecked = 0

    def result(self):
        """Go through the compared step, and return the findings."""
        for op in self._compared.ops:
            partner = self._pairs.get(op.index)
            if partner is None:
                self._shadows.compute(op)
            else:
                self._check(op, self._reference.ops[partner])
            self._shadows.forget(op)
        if self._parted is None:
            self._note_unpaired()
        faults = self._faults + (self._overflows if self._ends_nonfinite() else [])
        first = min(faults, key=lambda fault: fault["order"], default=None)
        largest = sorted(self._measured, key=lambda each: -each["share"])[:LISTED]
        return {
            "first": _clean(first),
            "largest": [_clean(each) for each in largest if each["share"] > 0],
            "parted": self._parted,
            "checked": self._checked,
            "unchecked": self._unchecked,
            "left_out": self._compared.left_out + self._reference.left_out,
        }

    # -- a pair of operations ------------------------------------------------------------------------------------------

    def _check(self, op, partner):
        if not self._have_equal_shapes(op, partner):
            ours = shapes_of(self._compared, op.inputs + op.outputs)
            others = shapes_of(self._reference, partner.inputs + partner.outputs)
            self._part(op, f"{op.public_name} has {ours} where the baseline has {others}")
            self._unchecked += 1
            for index in op.outputs:
                self._shadows.put(index, None)
            return
        sources = dict(zip(op.inputs, partner.inputs))  # a value may be two of the inputs
        given = {index: self._expected(other) for index, other in sources.items()}
        expected = [self._expected(index) for index in partner.outputs]
        is_known = all(each is not None for each in list(given.values()) + expected)
        if is_known and op.kind in (COMPUTE, END):
            given = {index: tensor.to(self._compared.values[index].device) for index, tensor in given.items()}
            inputs = {index: self._checked_input(op, index, sources[index], given[index]) for index in given}
            if op.kind == COMPUTE:
                self._check_op(op, partner, given, inputs, expected)
        else:
            self._unchecked += op.kind == COMPUTE
        for index, tensor in zip(op.outputs, expected):
            self._shadows.put(index, tensor)

    def _expected(self, index):
        return self._reference_store.get(self._reference.values[index].key)

    def _have_equal_shapes(self, op, partner):
        ours = [self._compared.values[index].shape for index in op.inputs + op.outputs]
        others = [self._reference.values[index].shape for index in partner.inputs + partner.outputs]
        return ours == others and len(op.inputs) == len(partner.inputs)

    # -- what comes to an operation from others without a counterpart, and from before the step ------------------------

    def _checked_input(self, op, index, other, expected):
        """Check an input, and return the reference's input in the dtype of the compared step."""
        value, shadow = self._compared.values[index], self._shadows.of(index)
        usual = expected.to(value.dtype)
        if shadow is None or not shadow.is_known or shadow.own.shape != expected.shape or self._is_state(index, other):
            return usual
        if expected.is_floating_point():
            return shadow.own if self._is_explained(op, index, other, shadow, expected) else usual
        if not torch.equal(shadow.exact, expected):
            if value.kind == OUTSIDE:
                self._part(op, descriptions.OTHER_DATA.format(op.public_name))
            elif value.op is not None and not shadow.is_own:
                ours, others = self._chains(index, other)
                told = descriptions.told_of_chain(ours, others)
                self._add_fault(op, ours, others, shadow, expected, told, torch.float32)
        return usual

    def _chains(self, index, other):
        """Return the unpaired operations that compute an input, in the two steps."""
        ours = upstream(self._compared, self._pairs, index)
        others = upstream(self._reference, self._reference_paired, other)
        is_sum_of_gradients = any(each.direction == "backward" and each.base == "add" for each in ours + others)
        return without_common(ours, others) if is_sum_of_gradients else (ours, others)

    def _add_fault(self, op, ours, others, shadow, expected, told, dtype):
        named, record = (others[0], self._reference) if others else (ours[0] if ours else op, self._compared)
        distance = in_units(shadow.own, expected, dtype, self._low)
        known = described(record, named)
        known["module"] = op.place.name if known["module"] is None else known["module"]
        self._faults.append(_fault(op, known, distance, 0.0, told, dtype))

    def _is_explained(self, op, index, other, shadow, expected):
        """Return whether an input differs from the reference's only by rounding; otherwise note why."""
        dtype, ours, others = shadow.dtype, [], []
        drift = in_units(shadow.exact, expected, torch.float32, self._low)
        is_other_data = drift * torch.finfo(torch.float32).eps > LARGEST_DRIFT
        if shadow.is_own:
            if is_rounding_of(shadow.own, expected):
                return True
            told = descriptions.OLD_VALUE
        else:
            ours, others = self._chains(index, other)
            is_other_data = is_other_data and self._compared.values[index].op is None
            if drift > SAME:
                told = descriptions.told_of_chain(ours, others)
            else:
                dtype, limit = self._explained(shadow, ours, others, expected)
                if in_units(shadow.own, expected, dtype, self._low) <= limit:
                    return True
                told = f"its results are less precise than {dtype_name(dtype)} explains"
        if is_other_data and not ours and not others:
            self._part(op, descriptions.OTHER_DATA.format(op.public_name))
            return False
        self._add_fault(op, ours, others, shadow, expected, told, dtype)
        return False

    def _explained(self, shadow, ours, others, expected):
        """Return the dtype that explains an input's error, and how many units of it.

        Args:
            ours, others: the unpaired operations that compute it in the two steps.
        """
        if torch.finfo(shadow.dtype).eps > torch.finfo(self._low).eps:
            return self._low, 1.0  # a conversion to a dtype coarser than the level's
        if not shadow.is_computed or sorted(op.base for op in ours) == sorted(op.base for op in others):
            return shadow.dtype, math.inf  # conversions and views; the same operations in another order
        tensors = [index for op in ours for index in op.inputs + op.outputs]
        has_half = any(is_half(self._compared.values[index].dtype) for index in tensors)
        if has_half and any(self._rules.get(op.function) == expansion.FLOAT for op in others):
            return torch.float32, SAME + in_units(shadow.rounded, expected, torch.float32, self._low)
        return shadow.dtype, CHAIN + 2.0 * in_units(shadow.rounded, expected, shadow.dtype, self._low)

    def _is_state(self, index, other):
        """Return whether a value comes from earlier steps, which the two runs trained differently."""
        origins = _origin(self._compared, index), _origin(self._reference, other)
        return all(value.kind == OUTSIDE and value.param is None and value.dtype.is_floating_point for value in origins)

    # -- an operation on the reference's inputs ------------------------------------------------------------------------

    def _check_op(self, op, partner, given, inputs, expected):
        dtypes = [self._compared.values[index].dtype for index in op.inputs + op.outputs]
        shadows = [self._shadows.of(index) for index in op.inputs]
        dtype = coarsest(dtypes + [each.dtype for each in shadows if each is not None])
        has_half = any(map(is_half, dtypes))
        try:
            found = results(op, given, inputs, expected, has_half)
        except Exception:  # such as an operation that this process cannot repeat in float32: it is counted
            self._unchecked += 1
            return
        self._checked += 1
        if not found:
            return
        errors = OpErrors(found, dtype, self._low)
        introduced, inherited = errors.introduced(), errors.inherited(self._recorded)
        told = dict(described(self._compared, op), op=partner.public_name)
        known = dict(told, introduced=introduced, inherited=inherited, unit=dtype_name(dtype))
        self._measured.append(dict(known, share=introduced * torch.finfo(dtype).eps))
        rule = self._rules.get(partner.public_name) if op.direction == "forward" else None
        fault = errors.fault(rule, has_half, dtypes)
        if fault is None:
            return
        if fault.startswith(descriptions.RUNS_IN):  # its own rounding is that of float32
            ratio = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
            introduced, inherited, dtype = introduced * ratio, inherited * ratio, torch.float32
        noted = self._overflows if fault == descriptions.OVERFLOW else self._faults
        noted.append(_fault(op, told, introduced, inherited, fault, dtype))

    def _recorded(self, index):
        return self._store.get(self._compared.values[index].key)

    # -- the whole step ------------------------------------------------------------------------------------------------

    def _part(self, op, told):
        if self._parted is None:
            self._parted = dict(described(self._compared, op), told=told)

    def _note_unpaired(self):
        """Note the first operation that only one of the steps has; sums of gradients do not count."""
        for record, paired, told in (
            (self._reference, self._reference_paired, "only the baseline has {}"),
            (self._compared, self._pairs, "the baseline does not have {}"),
        ):
            for op in record.ops:
                is_counted = op.direction == "forward" or (op.place.model is not None and op.base != "add")
                if op.kind == COMPUTE and op.index not in paired and op.inputs and is_counted:
                    self._parted = dict(described(record, op), told=told.format(op.public_name))
                    return

    def _ends_nonfinite(self):
        keys = [self._compared.values[index].key for index in self._compared.losses]
        tensors = [self._store.get(key) for key in keys + self._compared.gradients]
        return not is_finite([each for each in tensors if each is not None])


def _origin(record, index):
    """Return the value of which another one is a conversion, copy or view."""
    value = record.values[index]
    while value.op is not None and record.ops[value.op].kind == COPY and record.ops[value.op].inputs:
        op = record.ops[value.op]
        value = record.values[op.inputs[-1 if op.base == "copy" else 0]]
    return value


def _fault(op, told, introduced, inherited, fault, dtype):
    known = {"introduced": introduced, "inherited": inherited, "told": fault, "unit": dtype_name(dtype)}
    return dict(told, order=op.index, **known)


def _clean(found):
    return None if found is None else {name: value for name, value in found.items() if name not in ("order", "share")}
