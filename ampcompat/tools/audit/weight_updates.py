"""What an optimizer's steps do to half weights, compared with a twin that has float32 weights and state.

The twin gets the same gradients. For each param, with w the weights and t the twin's, before the first step and now,

    kept = <w_now - w_first, t_now - t_first> / |t_now - t_first|**2

is 1 if the weights follow, and 0 if every update was rounded away: smaller than half a unit in the last place of the
weight. Stochastic rounding, Kahan summation, and masters or remainders in the optimizer's state move such weights, too,
by the time that the twin's is a unit away. So these elements are counted: none of them moves by rounding to nearest.
"""

import torch

from ...support.tensor_lists import as_real
from ...support.torch_compat.torch_names import dtype_name
from ...trace.optimizer_twin import OptimizerTwin
from ...trace.values import NamedScalars

HALF = (torch.float16, torch.bfloat16)

#: Updates under this share of a unit in the last place are lost for certain where results are rounded to nearest: the
#: twin's update differs a little from that of an optimizer with half state.
_SURELY_LOST = 0.25


class WeightUpdates:
    """Observes the steps of all optimizers, of which ``before_step`` and ``after_step`` tell."""

    def __init__(self):
        self._watched = {}  # id(optimizer) -> ``WatchedOptimizer``

    def has(self, optimizer):
        """Return whether the optimizer has stepped before."""
        return id(optimizer) in self._watched

    def before_step(self, optimizer):
        """Note the weights, and step with the twin."""
        found = self._watched.get(id(optimizer))
        if found is None:
            found = self._watched[id(optimizer)] = WatchedOptimizer(optimizer)
        found.before_step()

    def after_step(self, optimizer):
        """Compare the weights with those before the step and with the twin's."""
        self._watched[id(optimizer)].after_step()

    def optimizers(self):
        """Return the ``WatchedOptimizer`` objects."""
        return list(self._watched.values())


class WatchedOptimizer:
    """One optimizer.

    Attributes:
        optimizer: the optimizer.
        steps: their number so far.
        problem: why its twin could not step, or None.
        dtypes_before: ``{param: dtype}`` of those whose dtype has changed since the first step.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.steps, self.problem, self.dtypes_before = 0, None, {}
        params = [param for group in optimizer.param_groups for param in group["params"]]
        self._dtypes = {param: param.dtype for param in params}
        half = [param for param in params if param.dtype in HALF and param.requires_grad]
        self._first = {param: param.detach().clone() for param in half}
        self._twin, self._copies, self._first_copies = None, {}, {}  # the last two: {half param: copy in the twin}
        self._counts = {}  # param -> (lost, meant) elements, summed over the steps: tensors of shape (2,)
        self._is_small = {}  # param -> the elements all of whose updates would be lost by rounding to nearest
        self._before = []

    def before_step(self):
        """Note the weights, and step with the twin."""
        self.steps += 1
        self._before = []
        if not self._first or self.problem is not None:
            return
        try:
            if self._twin is None:
                self._make_twin()
            before = [(param, param.detach().clone(), copy.detach().clone()) for param, copy in self._copies.items()]
            self._twin.step()
        except Exception as error:  # an optimizer may not support something, or a device has no memory: it is reported
            self.problem = str(error).strip().partition("\n")[0] or type(error).__name__
            self._twin, self._copies, self._first_copies = None, {}, {}
            return
        self._before = [each for each in before if each[0].grad is not None]

    def _make_twin(self):
        self._twin = OptimizerTwin(self.optimizer, torch.float32)
        copies = dict(self._twin.pairs)
        self._copies = {param: copies[param] for param in self._first}
        self._first_copies = {param: copies[param].detach().clone() for param in self._first}

    def after_step(self):
        """Count the updates that were lost."""
        for param, dtype in self._dtypes.items():
            if param.dtype is not dtype:
                self.dtypes_before.setdefault(param, dtype)
        with torch.no_grad():
            for param, weight, copied in self._before:
                if param.dtype is weight.dtype:
                    counts, is_small = _compared(*map(local, (param, weight, self._copies[param], copied)))
                    self._counts[param] = counts + self._counts.get(param, 0)
                    self._is_small[param] = is_small & self._is_small.get(param, is_small)
        self._before = []

    def params(self):
        """Return ``{param: ParamUpdates}`` of the half params; waits for their devices."""
        found = []
        with torch.no_grad():
            for param, first in self._first.items():
                if param.dtype is first.dtype:
                    found += [((param, name), value) for name, value in self._facts(param, first)]
            read = {}
            for (param, name), value in NamedScalars(found, torch.float64).read():
                read.setdefault(param, {})[name] = value
        return {param: ParamUpdates(param, facts) for param, facts in read.items()}

    def _facts(self, param, first):
        now, first = local(param), local(first)
        yield "unmoved", (now == first).sum()
        yield "nonfinite", (now - now != 0).sum()
        copied = self._copies.get(param)
        if copied is None:
            return
        moved = (local(copied) - local(self._first_copies[param])).double()
        yield "product", (moved * (now.double() - first.double())).sum()
        yield "square", (moved * moved).sum()
        if param in self._counts:
            yield "lost", self._counts[param][0]
            yield "meant", self._counts[param][1]
            is_far = self._is_small[param] & (moved.abs() >= unit_in_last_place(first))
            yield "far", is_far.sum()
            yield "far and moved", (is_far & (now != first)).sum()
        of_twin = self._twin.state.get(copied, {})
        for name, value in self.optimizer.state.get(param, {}).items():
            exact = of_twin.get(name)
            if _is_dense(value) and _is_dense(exact) and value.dtype in HALF and value.shape == exact.shape:
                yield "zero " + name, ((local(value) == 0) & (local(exact) != 0)).sum()

    def state_dtypes(self):
        """Return ``{name: set of dtypes}`` of the tensors in the optimizer's state."""
        found = {}
        for state in self.optimizer.state.values():
            for name, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor) and name != "step":
                    found.setdefault(name, set()).add(dtype_name(value.dtype))
        return found


class ParamUpdates:
    """What the steps have done to one half param.

    Attributes:
        param: the param.
        numel: the number of its elements, on this rank.
        unmoved: the number of elements that have their first value.
        lost: the share of the updates that did not change their element; None if the twin could not step.
        kept: see the module; None if it is unknown, or nothing was to move.
        zeros: ``{name of an optimizer state: share of elements that are 0, and in float32 are not}``.
        nonfinite: the number of elements that are inf or nan.
        far, far_and_moved: the number of elements that move in float32, by updates each of which rounding to nearest
            would lose, and how many of these have moved.
    """

    def __init__(self, param, facts):
        self.param, self.numel = param, local(param).numel()
        self.unmoved, self.nonfinite = int(facts["unmoved"]), int(facts["nonfinite"])
        self.far, self.far_and_moved = int(facts.get("far", 0)), int(facts.get("far and moved", 0))
        self.lost = facts["lost"] / facts["meant"] if facts.get("meant") else None
        self.kept = facts["product"] / facts["square"] if facts.get("square") else None
        zeros = {name[len("zero ") :]: value for name, value in facts.items() if name.startswith("zero ")}
        self.zeros = {name: value / max(self.numel, 1) for name, value in zeros.items()}


def _is_dense(value):
    """Return whether a value is a tensor of numbers, sharded or not: quantized state is a class of its own."""
    return type(value) is torch.Tensor or hasattr(value, "to_local")


def local(tensor):
    """Return the values of a tensor that this process has, without autograd."""
    tensor = tensor.detach()
    return as_real(tensor.to_local() if hasattr(tensor, "to_local") else tensor)


def _compared(now, before, twin_now, twin_before):
    """Return (lost, meant) updates as a tensor of shape (2,), and which elements have one that is surely lost, or 0."""
    update = (twin_now - twin_before).abs()
    is_meant = update != 0
    counts = torch.stack([(is_meant & (now == before)).sum(), is_meant.sum()])
    return counts, update < _SURELY_LOST * unit_in_last_place(before)


def unit_in_last_place(half):
    """Return the distances between the values of a half tensor and the next ones away from zero, in float32."""
    bits, smallest = (10, 2.0**-24) if half.dtype is torch.float16 else (7, 2.0**-133)
    exponent_alone = (half.float().view(torch.int32) & 0x7F800000).view(torch.float32)
    return (exponent_alone * 2.0**-bits).clamp_(min=smallest)
