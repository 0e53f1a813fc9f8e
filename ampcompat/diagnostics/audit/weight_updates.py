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

import collections

import torch

from ...observers.values import read_together
from ...support.torch_compat import step_hooks
from .repeated_steps import HALF, RepeatedSteps, chunks, flat, is_half, local, sums_by_param

#: Of every ``PERIOD`` steps, the first ``WINDOW`` are repeated.
WINDOW, PERIOD = 5, 25

#: About how many elements of a tensor ``sampled`` returns.
_SAMPLE = 64


class WeightUpdates:
    """Observes the steps of all optimizers, of which ``before_step`` and ``after_step`` tell.

    Attributes:
        steps: their number; one that contains steps of other optimizers does not count.
        first: ``{half param: its values before the first step of all}``.
    """

    def __init__(self):
        self.steps, self.first = 0, {}
        self._watched = {}  # id(optimizer) -> ``WatchedOptimizer``

    def has(self, optimizer):
        """Return whether the optimizer has stepped before."""
        return id(optimizer) in self._watched

    def before_step(self, optimizer):
        """Note the weights, and step with the twin."""
        found = self._watched.get(id(optimizer))
        if found is None:
            found = self._watched[id(optimizer)] = WatchedOptimizer(optimizer, self.first)
        for outer in [each for each in step_hooks.running() if each is not optimizer and self.has(each)]:
            self._watched[id(outer)].leave_to(found)
        found.before_step()

    def after_step(self, optimizer):
        """Compare the weights with those before the step and with the twin's; return the number of its steps."""
        found = self._watched[id(optimizer)]
        self.steps += not found.is_outer
        found.after_step()
        return found.steps

    def optimizers(self):
        """Return the ``WatchedOptimizer`` objects."""
        return list(self._watched.values())

    def alike(self):
        """Return the ``OptimizersAlike``: those of one class and with one learning rate at their first step."""
        found = {}
        for watched in self._watched.values():
            found.setdefault((type(watched.optimizer), *watched.rates[:1]), []).append(watched)
        return list(map(OptimizersAlike, found.values()))


class WatchedOptimizer:
    """One optimizer.

    Args:
        optimizer: the optimizer.
        first: ``{half param: its first values}`` of those that other optimizers have trained; gets those of this one.

    Attributes:
        optimizer: the optimizer.
        steps: their number so far.
        compared: the number of those that were compared with the twin's.
        problem: why its twin could not step any more, or None.
        dtypes_before: ``{param: dtype}`` of those whose dtype has changed since the first step.
        first: the first values of the half params.
        rounded: the ``RoundedWeights``.
        is_outer: whether other optimizers step within its steps.
        rates: the learning rates of the first group at the first step and at the last, if they are numbers.
        early: what ``facts`` returns at the end of the first window.
    """

    def __init__(self, optimizer, first):
        self.optimizer, self.early = optimizer, {}
        self.steps, self.compared, self.problem, self.dtypes_before, self.is_outer = 0, 0, None, {}, False
        self._dtypes, self._left, self._all_first, self.first = {}, set(), first, {}
        self._note_params()
        self.rounded = RoundedWeights(self._dtypes)
        self.rates = []
        self._window = None
        self._sums = {}  # (name, params) -> the sums over the windows that have ended, on the device
        self._compared = 0  # in these windows

    def _note_params(self):
        """Note the params, at the first step and those of groups that were added since."""
        new = [param for param in self.all_params() if param not in self._dtypes and param not in self._left]
        self._dtypes.update((param, param.dtype) for param in new)
        for param in new:
            if param.dtype in HALF and param.requires_grad:
                if not _has_dtype(param, self._all_first.get(param)):
                    self._all_first[param] = param.clone()
                self.first[param] = self._all_first[param]

    def leave_to(self, inner):
        """Leave the params of an optimizer that steps within this one's steps to that one."""
        self.is_outer = True
        for param in inner.all_params():
            self._left.add(param)
            self._dtypes.pop(param, None)
            self.first.pop(param, None)
        if not self.first:
            self._window = None

    def all_params(self):
        """Return the params of the optimizer's groups."""
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    def own_tensors(self):
        """Return the copies of params that this object keeps."""
        return list(self.first.values()) + ([] if self._window is None else self._window.own_tensors())

    def before_step(self):
        """Step with the twin, if the step is in a window."""
        self.rounded.before_step()
        place = self.steps % PERIOD
        if place == 0 and self.steps:
            self._note_params()
        self.steps += 1
        rate = next(iter(self.optimizer.param_groups), {}).get("lr")
        if isinstance(rate, float):
            self.rates = [(self.rates or [rate])[0], rate]
        if place == WINDOW:
            self._sums, self._window, self._compared = self.facts(), None, self.compared
            self.early = self.early or self._sums
        if self.problem is not None or self.dtypes_before or place >= WINDOW:
            return
        try:
            if self._begins(place):
                is_new = self.steps == 1 and not self.optimizer.state
                self._window = RepeatedSteps(self.optimizer, self.first, is_new)
            if self._window is not None:
                self._window.before_step()
        except Exception as error:  # an optimizer may not support something, or a device has no memory: it is reported
            self.problem = str(error).strip().partition("\n")[0] or type(error).__name__
            self._window, self.compared = None, self._compared

    def _begins(self, place):
        """Return whether a window begins: with half weights, or for half state, which there is from the second step."""
        if self.first or self.is_outer:
            return place == 0 and bool(self.first)
        states = [each for each in self.optimizer.state.values() if isinstance(each, dict)]
        return (place == 0 or self.steps == 2) and any(is_half(value) for each in states for value in each.values())

    def after_step(self):
        """Compare the weights with the twin's."""
        self.rounded.after_step()
        for param, dtype in self._dtypes.items():
            if param.dtype is not dtype:
                self.dtypes_before.setdefault(param, dtype)
        if self.dtypes_before:
            self._window = None
        if self._window is not None:
            self.compared += self._window.after_step()

    def facts(self):
        """Return ``{(name, params): vector}`` of all windows so far; zeros are those of the last window."""
        facts = dict(self._sums)
        for key, value in [] if self._window is None else self._window.facts():
            before = facts.pop(key, None)
            facts[key] = value if before is None or key[0].startswith("zero ") else before + value
        return facts


class OptimizersAlike:
    """Optimizers of one class, as one: a script may have one for each param, or make a new one for each phase.

    Attributes:
        kind: the name of their class.
        optimizers: the optimizers.
        steps: the most that a param was in.
        compared, problem, dtypes_before: those of the ``WatchedOptimizer``s.
        rates: at the first step of all, and at the last.
    """

    def __init__(self, watched):
        self._watched = watched
        self.optimizers = [each.optimizer for each in watched]
        self.kind = type(self.optimizers[0]).__name__
        steps = collections.Counter()
        for each in watched:
            steps.update(dict.fromkeys(each.all_params(), each.steps))
        self.steps = max(steps.values(), default=0)
        self.compared = sum(each.compared for each in watched)
        self.problem = next((each.problem for each in watched if each.problem is not None), None)
        self.rates = watched[0].rates[:1] + watched[-1].rates[1:]
        self.dtypes_before = {param: dtype for each in watched for param, dtype in each.dtypes_before.items()}

    def groups(self):
        """Return the optimizers' groups."""
        return [group for each in self.optimizers for group in each.param_groups]

    def rounded(self):
        """Return (a param whose values were rounded to half between steps, the dtype) or None; waits for devices."""
        found = ((each.rounded.param, each.rounded.dtype()) for each in self._watched)
        return next((pair for pair in found if pair[1] is not None), None)

    def params(self):
        """Return ``{param: ParamUpdates}`` of the params with half values or state; waits for their devices."""
        facts, first = [], {}
        for each in self._watched:
            facts += [(("early " + name, params), value) for (name, params), value in each.early.items()]
            facts += each.facts().items()
            first.update(each.first)
        for params in chunks(param for param, value in first.items() if _has_dtype(param, value)):
            now, then = flat(params), flat([first[param] for param in params])
            facts += sums_by_param({"unmoved": now == then, "nonfinite": now - now != 0}, params, params)
        read = {}
        for ((name, params), _), values in zip(facts, read_together([value for _, value in facts])):
            for param, value in zip(params, values):
                known = read.setdefault(param, {})
                known[name] = value + (0 if name.startswith("zero ") else known.get(name, 0))
        return {param: ParamUpdates(param, each) for param, each in read.items()}

    def lost_decay(self):
        """Return the share of half weights that AdamW's weight decay, now, leaves as they are; None if it has none.

        Its steps multiply the weights by ``1 - lr * weight_decay`` before they add the update; fused ones do not.
        """
        numel, lost = 0, 0
        known = {param for each in self._watched for param in each.first}
        for group in self.groups() if isinstance(self.optimizers[0], torch.optim.AdamW) else ():
            decay = group["lr"] * group["weight_decay"]
            for params in chunks(known.intersection(group["params"])) if decay and not group.get("fused") else ():
                values = flat(params)
                is_set = values != 0
                numel, lost = numel + is_set.sum(), lost + (is_set & (values * (1 - decay) == values)).sum()
        return float(lost) / float(numel) if numel else None

    def state(self):
        """Return ``{param: {name: value}}``, of optimizers whose states are such dicts."""
        found = {}
        for each in self.optimizers:
            found.update((param, state) for param, state in each.state.items() if isinstance(state, dict))
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


class ParamUpdates:
    """What the steps have done to one param with half values or state.

    Attributes:
        param: the param.
        numel: the number of its elements, on this rank.
        unmoved: the number of elements that have their first value; None if the param is not half.
        meant: the number of the updates, of all elements, that the twin made.
        lost: the share of these that did not change their element; None if there are none.
        kept: see the module; None if it is unknown, or nothing was to move.
        kept_early: the same of the first window.
        zeros: ``{name of an optimizer state: share of elements that are 0, and in float32 are not}``.
        nonfinite: the number of elements that are inf or nan.
        far, far_and_moved: the number of elements that move in float32, by updates each of which rounding to nearest
            would lose, and how many of these have moved.
    """

    def __init__(self, param, facts):
        self.param, self.numel = param, local(param).numel()
        self.unmoved, self.nonfinite = (
            int(facts[name]) if name in facts else None for name in ("unmoved", "nonfinite")
        )
        self.far, self.far_and_moved = int(facts.get("far", 0)), int(facts.get("far and moved", 0))
        self.meant = facts.get("meant", 0)
        self.lost = facts["lost"] / self.meant if self.meant else None
        self.kept, self.kept_early = (
            facts[early + "product"] / facts[early + "square"] if facts.get(early + "square") else None
            for early in ("", "early ")
        )
        zeros = {name[len("zero ") :]: value for name, value in facts.items() if name.startswith("zero ")}
        self.zeros = {name: value / max(self.numel, 1) for name, value in zeros.items()}


def _has_dtype(param, value):
    return value is not None and value.dtype is param.dtype


def sampled(tensor):
    """Return copies of evenly spaced elements of a tensor; none of one whose memory was freed, as gathered weights'."""
    values = local(tensor)
    values = values.reshape(-1) if values.untyped_storage().nbytes() else values.new_empty(0)
    return values[:: max(1, values.numel() // _SAMPLE)].clone()
