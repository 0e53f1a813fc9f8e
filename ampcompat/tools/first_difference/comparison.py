"""Compares a step with the reference's, operation by operation: which error each introduces, and which it inherits.

See the package's docstring for what is computed.
"""

import math
from typing import NamedTuple, Optional

import torch

from ...engine.op_table import expansion
from . import repeated_ops
from .alignment import aligned, upstream
from .repeated_ops import is_half
from .rounding import in_units, is_finite, is_rounding_of
from .shadows import Shadows, coarsest
from .step_record import COMPUTE, COPY, END, OUTSIDE

#: What rounding explains, in units of the dtype: of the same operation in float32 in both processes; of one operation
#: in half against float32 on the same half inputs; of operations that stand for others, beyond what their inputs cause.
SAME, KERNEL, CHAIN = 64.0, 2.0, 0.6

#: Values from before the step that differ by more than this share are other data, not an older copy.
OTHER_DATA = 0.5

#: How many operations the report lists.
LISTED = 10


#: What is told of an operation.
OVERFLOW, RUNS_IN = "its result is beyond the range of its dtype", "runs in"

#: Operations that add up products of their inputs, so that on absolute values they give what their rounding scales with.
SUMS = frozenset(
    "mm addmm bmm baddbmm mv addmv dot sum mean add sub cumsum convolution convolution_backward embedding_dense_backward "
    "index_add scatter_add".split()
)


class Result(NamedTuple):
    """A result of an operation on the inputs of the reference, and on those rounded as the compared step has them.

    ``index``: of its value. ``own``: in the step's dtypes; ``ideal``: from the same rounded inputs in float32;
    ``exact``: from inputs that are not rounded; ``expected``: of the reference; ``scale``: see ``in_units``.
    """

    index: int
    own: torch.Tensor
    ideal: torch.Tensor
    exact: torch.Tensor
    expected: torch.Tensor
    scale: Optional[torch.Tensor]


def compare(reference, reference_store, compared, store, rules):
    """Return what is known of the difference of two steps, as JSON has it: see ``report_data.FirstDifference``.

    Args:
        reference, compared: ``StepRecord``.
        reference_store, store: their ``TensorStore``.
        rules: ``{function: rule}`` of the op table where it casts functions in the compared step.
    """
    return _Comparison(reference, reference_store, compared, store, rules).result()


class _Comparison:
    def __init__(self, reference, reference_store, compared, store, rules):
        self._reference, self._reference_store = reference, reference_store
        self._compared, self._store, self._rules = compared, store, rules
        self._pairs = aligned(reference, compared)
        self._reference_paired = frozenset(self._pairs.values())
        params = {}
        for value in reference.values:
            if value.param is not None and value.kind == OUTSIDE and value.param not in params:
                params[value.param] = reference_store.get(value.key)
        self._shadows = Shadows(compared, store, params, frozenset(self._pairs))
        self._low = coarsest([value.dtype for value in compared.values if value.dtype.is_floating_point])
        self._faults, self._overflows, self._measured, self._parted = [], [], [], None
        self._checked = self._unchecked = 0

    def result(self):
        for op in self._compared.ops:
            partner = self._pairs.get(op.index)
            if partner is None:
                self._shadows.compute(op)
            else:
                self._check(op, self._reference.ops[partner])
            self._shadows.forget(op)
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
        problem = self._shapes_differ(op, partner)
        if problem is not None:
            self._part(op, problem)
            self._unchecked += 1
            for index in op.outputs:
                self._shadows.put(index, None)
            return
        given = dict(zip(op.inputs, [self._value(index) for index in partner.inputs]))
        expected = [self._value(index) for index in partner.outputs]
        if op.kind == COMPUTE and all(each is not None for each in list(given.values()) + expected):
            self._checked += 1
            inputs = self._check_inputs(op, partner, given)
            self._check_op(op, partner, given, inputs, expected)
        elif op.kind == END and None not in given.values():
            self._check_inputs(op, partner, given)
        else:
            self._unchecked += op.kind == COMPUTE
        for index, tensor in zip(op.outputs, expected):
            self._shadows.put(index, tensor)

    def _value(self, index):
        value = self._reference.values[index]
        tensor = self._reference_store.get(value.key)
        return None if tensor is None else tensor

    def _shapes_differ(self, op, partner):
        ours = [self._compared.values[index].shape for index in op.inputs + op.outputs]
        theirs = [self._reference.values[index].shape for index in partner.inputs + partner.outputs]
        if ours == theirs and len(op.inputs) == len(partner.inputs):
            return None
        return "{} has {} where the baseline has {}".format(op.public_name, _shapes(ours), _shapes(theirs))

    def _check_inputs(self, op, partner, given):
        """Check what comes to an operation from others that have no counterpart, and from before the step.

        Returns:
            ``{index of a value: tensor}``: the reference's inputs as the compared step has them, in its dtypes.
        """
        inputs = {}
        for index, theirs, expected in zip(op.inputs, partner.inputs, given.values()):
            value, shadow = self._compared.values[index], self._shadows.of(index)
            expected = given[index] = expected.to(value.device)
            inputs[index] = expected.to(value.dtype) if shadow is None else shadow.own
            if shadow is None or not shadow.is_known or shadow.own.shape != expected.shape:
                inputs[index] = expected.to(value.dtype)
                continue
            if not expected.is_floating_point():
                if value.kind == OUTSIDE and not torch.equal(shadow.own, expected):
                    self._part(op, "{} gets other data than in the baseline".format(op.public_name))
                inputs[index] = expected
                continue
            if self._is_explained(op, partner, theirs, index, shadow, expected):
                continue
            inputs[index] = expected.to(value.dtype)
        return inputs

    def _is_explained(self, op, partner, theirs, index, shadow, expected):
        """Return whether an input differs from the reference's by rounding only; otherwise note the fault."""
        if self._is_state(index, theirs):
            return False
        if shadow.is_own:
            if is_rounding_of(shadow.own, expected):
                return True
            told = "takes a value from before the step that is not the baseline's, such as a cast of older weights"
            distance = in_units(shadow.exact, expected, shadow.dtype, self._low)
            if distance * torch.finfo(shadow.dtype).eps > OTHER_DATA:
                self._part(op, "{} gets other data than in the baseline".format(op.public_name))
                return False
        elif in_units(shadow.exact, expected, torch.float32, self._low) > SAME:
            distance = in_units(shadow.own, expected, shadow.dtype, self._low)
            relative = in_units(shadow.exact, expected, shadow.dtype, self._low) * torch.finfo(shadow.dtype).eps
            ours, others = self._chains(index, theirs)
            if relative > OTHER_DATA and not ours and not others and self._is_data(index):
                self._part(op, "{} gets other data than in the baseline".format(op.public_name))
                return False
            told = _told_of_chain(ours, others)
        else:
            dtype, limit = self._explained(shadow, index, theirs, expected)
            distance = in_units(shadow.own, expected, dtype, self._low)
            if distance <= limit:
                return True
            told = "its results are less precise than {} explains".format(_name(dtype))
        ours, others = self._chains(index, theirs)
        named = (others or ours or [op])[0]
        self._faults.append(self._fault(op, named, max(distance, 0.0), 0.0, told, shadow.dtype))
        return False

    def _is_state(self, index, theirs):
        """Return whether a value is what both runs brought from the steps before, which they trained differently."""
        ours, others = self._origin(self._compared, index), self._origin(self._reference, theirs)
        return all(value.kind == OUTSIDE and value.param is None for value in (ours, others))

    @staticmethod
    def _origin(record, index):
        """Return the value that another one is a cast, copy or view of."""
        value = record.values[index]
        while value.op is not None and record.ops[value.op].kind == COPY and record.ops[value.op].inputs:
            op = record.ops[value.op]
            value = record.values[op.inputs[-1 if op.base == "copy" else 0]]
        return value

    def _is_data(self, index):
        value = self._compared.values[index]
        return value.kind == OUTSIDE or value.op is None

    def _chains(self, index, theirs):
        ours = upstream(self._compared, self._pairs, index)
        return ours, upstream(self._reference, self._reference_paired, theirs)

    def _explained(self, shadow, index, theirs, expected):
        """Return the dtype that explains an input's error, and how many units of it."""
        if not shadow.is_computed:
            return shadow.dtype, math.inf
        dtype = shadow.dtype
        ours, others = self._chains(index, theirs)
        if sorted(op.base for op in ours) == sorted(op.base for op in others):  # the same, in another order
            return dtype, math.inf
        if any(self._rules.get(op.function) == expansion.FLOAT for op in others):
            if any(is_half(self._compared.values[each].dtype) for op in ours for each in op.inputs + op.outputs):
                return torch.float32, SAME + in_units(shadow.rounded, expected, torch.float32, self._low)
        return dtype, CHAIN + 2.0 * in_units(shadow.rounded, expected, dtype, self._low)

    # -- an operation on the reference's inputs ------------------------------------------------------------------------

    def _check_op(self, op, partner, given, inputs, expected):
        dtypes = [self._compared.values[index].dtype for index in op.inputs + op.outputs]
        shadows = [self._shadows.of(index) for index in op.inputs]
        dtype = coarsest(dtypes + [each.dtype for each in shadows if each is not None])
        has_half = any(map(is_half, dtypes))
        try:
            results = self._results(op, given, inputs, expected, has_half)
        except Exception:  # such as an operation that this process cannot repeat in float32
            self._checked, self._unchecked = self._checked - 1, self._unchecked + 1
            return
        if not results:
            return
        introduced = max(self._units(each.own, each.expected, dtype, each) for each in results)
        inherited = max(self._inherited(each, dtype) for each in results)
        self._measure(op, introduced, inherited, dtype)
        told = self._fault_of(op, results, dtype, has_half)
        if told is None:
            return
        if told.startswith(RUNS_IN):  # its own rounding is that of float32
            dtype, ratio = torch.float32, torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
            introduced, inherited = introduced * ratio, inherited * ratio
        found = self._overflows if told == OVERFLOW else self._faults
        found.append(self._fault(op, op, introduced, inherited, told, dtype))

    def _results(self, op, given, inputs, expected, has_half):
        """Return the ``Result`` of each floating output."""
        wide = {index: repeated_ops.widened(tensor) for index, tensor in given.items()}
        exact = repeated_ops.repeat(op, wide, is_wide=True)
        own = repeated_ops.repeat(op, inputs)
        ideal = own
        if has_half:
            halves = {index: repeated_ops.widened(tensor) for index, tensor in inputs.items()}
            ideal = repeated_ops.repeat(op, halves, is_wide=True)
        scales = [None] * len(own)
        if op.base in SUMS:
            sizes = {index: each.abs() if each.is_floating_point() else each for index, each in wide.items()}
            scales = repeated_ops.repeat(op, sizes, is_wide=True)
        rows = zip(op.outputs, own, ideal, exact, expected, scales)
        found = [Result(*row) for row in rows if row[4].is_floating_point() and row[4].numel()]
        found = [each for each in found if each.own.shape == each.expected.shape]
        return [each._replace(expected=each.expected.to(each.own.device)) for each in found]

    def _units(self, value, expected, dtype, result):
        return in_units(value, expected, dtype, self._low, result.scale)

    def _inherited(self, result, dtype):
        recorded = self._store.get(self._compared.values[result.index].key)
        if recorded is None:
            return 0.0
        recorded = recorded.to(result.own.device).double()
        shift = recorded - result.own.double() + result.expected.double()
        alone = self._units(shift, result.expected, dtype, result)
        return alone if math.isfinite(alone) else self._units(recorded, result.expected, dtype, result)

    def _fault_of(self, op, results, dtype, has_half):
        """Return what is wrong with an operation, or None."""

        def largest(name, other, unit):
            return max(self._units(getattr(each, name), getattr(each, other), unit, each) for each in results)

        if largest("exact", "expected", torch.float32) > SAME:
            return "computes something else than in the baseline, in float32 too: its kernel or its arguments differ"
        if not is_finite([each.own for each in results]) and is_finite([each.expected for each in results]):
            return OVERFLOW
        if has_half and largest("own", "ideal", dtype) > KERNEL:
            return "its kernel for {} is less precise than the dtype".format(_name(dtype))
        dtypes = [self._compared.values[index].dtype for index in op.inputs + op.outputs]
        has_half_rule = op.direction == "forward" and self._rules.get(op.public_name) == expansion.FLOAT
        if has_half_rule and any(map(is_half, dtypes)) and largest("own", "expected", torch.float32) > SAME:
            return "{} {} though the op table has it in float32".format(RUNS_IN, _name(dtype))
        return None

    # -- what is told --------------------------------------------------------------------------------------------------

    def _fault(self, op, named, introduced, inherited, told, dtype):
        partner = self._pairs.get(named.index) if named is op else None
        name = named.public_name if partner is None else self._reference.ops[partner].public_name
        return dict(self._described(named), op=name, introduced=introduced, inherited=inherited, told=told, order=op.index,
                    unit=_name(dtype))  # fmt: skip

    def _described(self, op):
        record = self._compared if op.index < len(self._compared.ops) and self._compared.ops[op.index] is op else None
        record = record or self._reference
        tensors = [record.values[index] for index in op.inputs + op.outputs]
        return {
            "module": op.place.module if op.place.model is not None else None,
            "op": op.public_name,
            "direction": op.direction,
            "kernel": op.name,
            "call": op.module_call,
            "line": "{}:{}".format(*op.line),
            "shapes": [list(value.shape) for value in tensors],
            "dtypes": [_name(value.dtype) for value in tensors],
        }

    def _measure(self, op, introduced, inherited, dtype):
        eps = torch.finfo(dtype).eps
        share = introduced * eps
        self._measured.append(
            dict(self._described(op), introduced=introduced, inherited=inherited, unit=_name(dtype), share=share)
        )

    def _part(self, op, told):
        if self._parted is None:
            self._parted = dict(self._described(op), told=told)

    def _note_unpaired(self):
        """Note where one step has an operation that the other lacks, if nothing else was noted."""
        if self._parted is not None:
            return
        for record, paired, told in (
            (self._reference, self._reference_paired, "only the baseline has {}"),
            (self._compared, self._pairs, "the baseline lacks {}"),
        ):
            for op in record.ops:
                is_counted = op.direction == "forward" or (op.place.model is not None and op.base != "add")
                if op.kind == COMPUTE and op.index not in paired and op.inputs and is_counted:
                    self._part(op, told.format(op.public_name))
                    return

    def _ends_nonfinite(self):
        keys = [self._compared.values[index].key for index in self._compared.losses]
        tensors = [self._store.get(key) for key in keys + self._compared.gradients]
        return not is_finite([each for each in tensors if each is not None])


def _told_of_chain(ours, others):
    if ours and others:
        return "another computation stands in its place: {}".format(_names(ours))
    if others:
        return "it is missing"
    if ours:
        return "the baseline does not have it"
    return "its input is another value than in the baseline"


def _names(ops):
    names = list(dict.fromkeys(op.public_name for op in ops))
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _clean(found):
    return None if found is None else {name: value for name, value in found.items() if name not in ("order", "share")}


def _name(dtype):
    return str(dtype).replace("torch.", "")


def _shapes(shapes):
    return ", ".join("x".join(map(str, shape)) or "()" for shape in shapes)
