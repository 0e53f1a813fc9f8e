"""What an optimizer's steps do to half weights, compared with a twin that has float32 weights and state.

The twin gets the same gradients. It steps in windows, the first ``WINDOW`` steps of every ``PERIOD``: at the beginning
of each it is made anew. For each param, with w the weights and t the twin's, before and after a window,

    kept = <w_after - w_before, t_after - t_before> / |t_after - t_before|**2,    numerator and denominator summed

is 1 if the weights follow, and 0 if every update was rounded away: smaller than half a unit in the last place of the
weight. Unless the optimizer is new, the first step of a window does not count: with it the twin makes up for what the
optimizer has kept back (masters, a Kahan sum).

Stochastic rounding, Kahan summation, and masters or remainders in the optimizer's state move such weights, too, by the
time that the twin's is half a unit away. So these elements are counted: none of them moves by rounding to nearest.
"""

import torch

from ...support.tensor_lists import CHUNK, as_real
from ...support.torch_compat import step_hooks
from ...support.torch_compat.torch_names import dtype_name
from ...trace.optimizer_twin import OptimizerTwin
from ...trace.values import NamedScalars

HALF = (torch.float16, torch.bfloat16)

#: Of every ``PERIOD`` steps, the first ``WINDOW`` are repeated.
WINDOW, PERIOD = 5, 25

#: Updates under this share of a unit in the last place are lost for certain where results are rounded to nearest: the
#: twin's update differs a little from that of an optimizer with half state.
_SURELY_LOST = 0.25


#: About how many elements of a tensor ``sampled`` returns.
_SAMPLE = 64


class WeightUpdates:
    """Observes the steps of all optimizers, of which ``before_step`` and ``after_step`` tell.

    Attributes:
        steps: their number; one that contains steps of other optimizers does not count.
    """

    def __init__(self):
        self.steps = 0
        self._watched = {}  # id(optimizer) -> ``WatchedOptimizer``

    def has(self, optimizer):
        """Return whether the optimizer has stepped before."""
        return id(optimizer) in self._watched

    def before_step(self, optimizer):
        """Note the weights, and step with the twin."""
        found = self._watched.get(id(optimizer))
        if found is None:
            found = self._watched[id(optimizer)] = WatchedOptimizer(optimizer)
        for outer in [each for each in step_hooks.running() if each is not optimizer and self.has(each)]:
            self._watched[id(outer)].leave_to(found)
        found.before_step()

    def after_step(self, optimizer):
        """Compare the weights with those before the step and with the twin's."""
        found = self._watched[id(optimizer)]
        self.steps += not found.is_outer
        found.after_step()

    def optimizers(self):
        """Return the ``WatchedOptimizer`` objects."""
        return list(self._watched.values())


class WatchedOptimizer:
    """One optimizer.

    Attributes:
        optimizer: the optimizer.
        steps: their number so far.
        compared: the number of those that were compared with the twin's.
        problem: why its twin could not step any more, or None.
        dtypes_before: ``{param: dtype}`` of those whose dtype has changed since the first step.
        first: the first values of the half params.
        rounded: the ``RoundedWeights``.
        is_outer: whether other optimizers step within its steps.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.steps, self.compared, self.problem, self.dtypes_before, self.is_outer = 0, 0, None, {}, False
        self._dtypes = {param: param.dtype for param in self.all_params()}
        half = [param for param in self._dtypes if param.dtype in HALF and param.requires_grad]
        self.first = {param: param.detach().clone() for param in half}
        self.rounded = RoundedWeights(self._dtypes)
        self._window = None
        self._sums = {}  # (param, name) -> the sum over the windows that have ended, on the device
        self._compared = 0  # in these windows

    def leave_to(self, inner):
        """Leave the params of an optimizer that steps within this one's steps to that one."""
        self.is_outer = True
        for param in inner.all_params():
            self._dtypes.pop(param, None)
            self.first.pop(param, None)
        if not self.first:
            self._window = None

    def all_params(self):
        """Return the params of the optimizer's groups."""
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    def own_tensors(self):
        """Return the copies of params that this object keeps."""
        return list(self.first.values()) + ([] if self._window is None else self._window.copies())

    def before_step(self):
        """Step with the twin, if the step is in a window."""
        self.rounded.before_step()
        place = self.steps % PERIOD
        self.steps += 1
        if place == WINDOW:
            self._sums, self._window, self._compared = self._facts(), None, self.compared
        if not self.first or self.problem is not None or self.dtypes_before or place >= WINDOW:
            return
        try:
            if place == 0:
                is_new = self.steps == 1 and not self.optimizer.state
                self._window = RepeatedSteps(self.optimizer, self.first, is_new)
            if self._window is not None:
                self._window.before_step()
        except Exception as error:  # an optimizer may not support something, or a device has no memory: it is reported
            self.problem = str(error).strip().partition("\n")[0] or type(error).__name__
            self._window, self.compared = None, self._compared

    def after_step(self):
        """Compare the weights with the twin's."""
        self.rounded.after_step()
        for param, dtype in self._dtypes.items():
            if param.dtype is not dtype:
                self.dtypes_before.setdefault(param, dtype)
        if self.dtypes_before:
            self._window = None
        if self._window is not None:
            with torch.no_grad():
                self.compared += self._window.after_step()

    def _facts(self):
        facts = dict(self._sums)
        if self._window is not None:
            for key, value in self._window.facts():
                facts[key] = value if key[1].startswith("zero ") or key not in facts else facts[key] + value
        return facts

    def params(self):
        """Return ``{param: ParamUpdates}`` of the half params; waits for their devices."""
        facts = self._facts()
        with torch.no_grad():
            for param, first in self.first.items():
                if param.dtype is first.dtype:
                    facts[param, "unmoved"] = (local(param) == local(first)).sum()
                    facts[param, "nonfinite"] = (local(param) - local(param) != 0).sum()
            read = {}
            for (param, name), value in NamedScalars(list(facts.items()), torch.float64).read():
                read.setdefault(param, {})[name] = value
        return {param: ParamUpdates(param, each) for param, each in read.items() if "unmoved" in each}

    def state_dtypes(self):
        """Return ``{name: set of dtypes}`` of the tensors in the optimizer's state."""
        found = {}
        for state in self.optimizer.state.values():
            for name, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor) and name != "step":
                    found.setdefault(name, set()).add(dtype_name(value.dtype))
        return found


class RoundedWeights:
    """Whether float32 weights are rounded to half between steps, as by ``model.half()`` and ``float()``.

    Args:
        params: the params of an optimizer; a few elements of the largest one are looked at.

    Attributes:
        param: that one, or None without float32 params.
    """

    def __init__(self, params):
        full = [param for param in params if param.dtype is torch.float32 and param.requires_grad]
        self.param = max(full, key=torch.numel, default=None)
        self._after = None  # the values after the last step
        self._pairs = []  # of these and those before the next one
        self._found = {}  # dtype -> whether weights were rounded to it, on the device

    def after_step(self):
        """Note the weights."""
        self._after = None if self.param is None else sampled(self.param)

    def before_step(self):
        """Compare with the weights after the last step, in one go for many steps."""
        if self._after is not None:
            self._pairs.append((self._after, sampled(self.param)))
            if len(self._pairs) == PERIOD:
                self._compare()

    def _compare(self):
        after, now = map(torch.stack, zip(*self._pairs))
        self._pairs = []
        for dtype in HALF:
            rounded = after.to(dtype).to(after.dtype)
            are_rounded = (now == rounded).all(1) & (now != after).any(1)
            self._found[dtype] = are_rounded.any() | self._found.get(dtype, False)

    def dtype(self):
        """Return the dtype that they were rounded to, or None; waits for the device."""
        if self._pairs:
            self._compare()
        return next((dtype for dtype, is_found in self._found.items() if is_found), None)


class RepeatedSteps:
    """Consecutive steps that are repeated with a twin.

    Args:
        optimizer: the original, before the first of the steps.
        params: its half params.
        is_new: whether the optimizer has never stepped.
    """

    def __init__(self, optimizer, params, is_new):
        self._twin = OptimizerTwin(optimizer, torch.float32)
        copies = dict(self._twin.pairs)
        self._chunks = [ParamChunk([(param, copies[param]) for param in chunk]) for chunk in _chunks(params)]
        self._optimizer, self._copies = optimizer, copies
        self._counts = is_new  # the step

    def copies(self):
        """Return the twin's params."""
        return list(self._copies.values())

    def before_step(self):
        """Note the weights, and step with the twin."""
        if self._counts:
            for chunk in self._chunks:
                chunk.before_step()
        self._twin.step()

    def after_step(self):
        """Count the updates that were lost; return whether the step counts."""
        counted, self._counts = self._counts, True
        if counted:
            for chunk in self._chunks:
                chunk.after_step()
        return counted

    def facts(self):
        """Yield ``((param, name), tensor of shape ())``: what to sum over the windows, or the number of zeros now."""
        with torch.no_grad():
            for chunk in self._chunks:
                yield from chunk.facts()
                for param in chunk.params:
                    for name, value in self._zeros(param):
                        yield (param, "zero " + name), value

    def _zeros(self, param):
        of_twin = self._twin.state.get(self._copies[param], {})
        for name, value in self._optimizer.state.get(param, {}).items():
            exact = of_twin.get(name)
            if _is_dense(value) and _is_dense(exact) and value.dtype in HALF and value.shape == exact.shape:
                yield name, ((local(value) == 0) & (local(exact) != 0)).sum()


class ParamChunk:
    """Params of one device and dtype, with their copies: what is done at each step takes all of them at once.

    Attributes:
        params: the params.
    """

    def __init__(self, pairs):
        self.params, self._copies = map(list, zip(*pairs))
        self._start = self._before = None  # (the weights, the copies)
        self._lost = self._meant = self._is_small = None

    def _values(self):
        return tuple(torch.cat([local(each).reshape(-1) for each in part]) for part in (self.params, self._copies))

    def before_step(self):
        """Note the weights."""
        self._before = self._values()
        if self._start is None:
            self._start = self._before
            self._lost, self._meant = (torch.zeros_like(self._before[0], dtype=torch.uint8) for _ in range(2))
            self._is_small = torch.ones_like(self._lost, dtype=torch.bool)

    def after_step(self):
        """Count the updates that were lost."""
        (weight, copy), (now, copy_now) = self._before, self._values()
        update = (copy_now - copy).abs_()
        is_meant = update != 0
        self._meant += is_meant
        self._lost += is_meant & (now == weight)
        self._is_small &= update < _SURELY_LOST * unit_in_last_place(weight)
        self._before = None

    def facts(self):
        """Yield ``((param, name), tensor of shape ())``."""
        if self._start is None:
            return
        now, copy = self._values()
        moved = copy - self._start[1]
        is_far = self._is_small & (moved.abs() >= unit_in_last_place(self._start[0]) / 2)
        by_name = {
            "product": moved.double() * (now.double() - self._start[0].double()),
            "square": moved.double().square_(),
            "lost": self._lost,
            "meant": self._meant,
            "far": is_far,
            "far and moved": is_far & (now != self._start[0]),
        }
        sizes = [local(param).numel() for param in self.params]
        for name, values in by_name.items():
            for param, part in zip(self.params, values.split(sizes)):
                yield (param, name), part.sum()


def _chunks(params):
    """Return lists of params of one device and dtype, each with one param or about ``CHUNK`` elements."""
    chunks, sizes = {}, {}
    for param in params:
        key = param.device, param.dtype
        if key not in chunks or sizes[key] + param.numel() > CHUNK:
            chunks.setdefault(key, []).append([])
            sizes[key] = 0
        chunks[key][-1].append(param)
        sizes[key] += param.numel()
    return [chunk for alike in chunks.values() for chunk in alike]


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


def sampled(tensor):
    """Return copies of evenly spaced elements of a tensor; none of one whose memory was freed, as gathered weights'."""
    values = local(tensor)
    values = values.reshape(-1) if values.untyped_storage().nbytes() else values.new_empty(0)
    return values[:: max(1, values.numel() // _SAMPLE)].clone()


def unit_in_last_place(half):
    """Return the distances between the values of a half tensor and the next ones away from zero, in float32."""
    bits, smallest = (10, 2.0**-24) if half.dtype is torch.float16 else (7, 2.0**-133)
    exponent_alone = (half.float().view(torch.int32) & 0x7F800000).view(torch.float32)
    return (exponent_alone * 2.0**-bits).clamp_(min=smallest)
