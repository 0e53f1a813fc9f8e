"""The step of an optimizer whose masters are stored: one chunk of them after another has its values.

Each chunk is stepped by the optimizer's own ``step``, while ``param_groups`` holds the params of this chunk only. That
changes no bit where the optimizer treats each param by itself. ``check`` finds out: it steps a copy of the optimizer
that has a few tiny params.
"""

import copy
import functools
import inspect
from collections import defaultdict

import torch

from ...errors import AmpError
from ...support.patching import PatchStack
from ...support.torch_compat import fake_tensors, step_hooks, thread_context
from ...support.torch_compat.thread_blocks import grad_enabled
from ..masters import zero_redundancy_optimizer
from .amp_stash import STASH

#: What ``check`` tries: params of each group, the extent of their dimensions, the size of the gradients of each step.
#: Only large gradients show a norm over all params that is clipped.
PARAMS_TRIED, EXTENT = 3, 3
GRADIENTS_TRIED = (1e-3, 1.0, 1e3)

#: Attributes of these types hold counts of steps and the like.
_IMMUTABLE = (bool, int, float, str, type(None))


class ChunkedStep:
    """The ``step`` of an optimizer whose masters are stored between steps, chunk by chunk.

    Args:
        record: its ``OptimizerRecord``.
        step: its own ``step``.
    """

    def __init__(self, record, step):
        self._record = record
        self._step = step

    def __call__(self, *args, **kwargs):
        if self._record.masters.are_on_cuda() and thread_context.is_capturing_cuda_graph():
            raise AmpError(
                "optimizer.step() is being captured in a CUDA graph, and store_param_remainders=True allocates memory "
                "at each step. Leave that option out, or step outside of the graph."
            )
        optimizer, patches = self._record.optimizer, self._record.methods.hidden_hooks
        patches.undo()  # what is left of a step that was interrupted as it ended
        with patches:
            pre_hooks, post_hooks = step_hooks.hide(optimizer, patches)
            for hook in pre_hooks:
                args, kwargs = hook(optimizer, args, kwargs) or (args, kwargs)
            result = self._run(args, kwargs)
            for hook in post_hooks:
                hook(optimizer, args, kwargs)
        return result

    def _run(self, args, kwargs):
        record = self._record
        closure, has_others = _closure_of(args, kwargs)
        if has_others:  # such as gradients of all params
            record.masters.restore_values()
            return self._step(*args, **kwargs)
        loss = None if closure is None else closure()  # its first backward pass stores the masters
        chunks = [chunk for chunk in record.masters.stored_chunks() if chunk.has_gradients()]
        parts = [(chunk.masters, functools.partial(self._step_on, chunk)) for chunk in chunks]
        result = step_in_parts(record.optimizer, parts or [([], self._step)])
        return result if closure is None else loss

    def _step_on(self, chunk):
        chunk.begin_step(self._record.gradients.are_half_stepped_on())
        result = self._step()
        chunk.end_step()
        return result


def _closure_of(args, kwargs):
    """Return the closure among the arguments of ``step``, or None, and whether there are other arguments."""
    if args:
        return args[0], len(args) > 1 or bool(kwargs)
    return kwargs.get("closure"), bool(set(kwargs) - {"closure"})


def step_in_parts(optimizer, parts):
    """Step an optimizer on some of its params after others.

    Args:
        optimizer: the optimizer.
        parts: (some of its params, a function without arguments that steps on them) pairs, at least one. Params that
            are in none are stepped on with the first.

    Returns:
        What the last step has returned.
    """
    groups = list(optimizer.param_groups)
    params = [list(group["params"]) for group in groups]
    part_of = {id(param): number for number, (part, _) in enumerate(parts) for param in part}
    counts, result = _Counts(optimizer, groups), None
    try:
        for number, (_, step) in enumerate(parts):
            own = [[param for param in each if part_of.get(id(param), 0) == number] for each in params]
            optimizer.param_groups[:] = [group for group, each in zip(groups, own) if each or number == 0]
            for group, each in zip(groups, own):
                group["params"][:] = each
            counts.restore(optimizer)
            result = step()
    finally:
        optimizer.param_groups[:] = groups
        for group, each in zip(groups, params):
            group["params"][:] = each
    return result


class _Counts:
    """Counts of steps and other options that a step changes, per group and per optimizer, from before a step."""

    def __init__(self, optimizer, groups):
        self._groups = {id(group): _copied(group) for group in groups}
        self._attributes = {name: value for name, value in vars(optimizer).items() if isinstance(value, _IMMUTABLE)}

    def restore(self, optimizer):
        """Restore those of the optimizer, and of the groups that it has now."""
        for group in optimizer.param_groups:
            before = self._groups[id(group)]
            for name in [name for name in group if name not in before and name != "params"]:
                del group[name]
            for name, (value, values) in before.items():
                group[name] = value
                if values is not None and value._version != values[0]:
                    with grad_enabled(False):
                        value.copy_(values[1])
        vars(optimizer).update(self._attributes)


def _copied(group):
    return {
        name: (value, (value._version, value.clone()) if isinstance(value, torch.Tensor) else None)
        for name, value in group.items()
        if name != "params"
    }


def check(optimizer, was_tried=False):
    """Raise if an optimizer cannot be stepped chunk by chunk. It is not changed.

    Args:
        was_tried: it has passed before, so that a copy that cannot be stepped, as its state is of larger params, is
            no reason against it.

    Raises:
        AmpError: its steps have other results then, or a copy of it cannot be stepped.
    """
    name = type(optimizer).__name__
    advice = "Leave store_param_remainders=True out for it."
    if zero_redundancy_optimizer.is_partitioned(optimizer):
        raise AmpError(f"{name} steps on this rank's part of the params with an optimizer of its own. {advice}")
    if _needs_closure(optimizer):
        raise AmpError(
            f"store_param_remainders=True steps on some params after others, and the step of {name} needs a closure, "
            f"which computes the gradients of all of them. {advice}"
        )
    try:
        with thread_context.without_dispatch_modes(), torch.random.fork_rng(devices=[]), PatchStack() as patches:
            step_hooks.hide(optimizer, patches)
            with grad_enabled(torch.is_grad_enabled()):  # as in ``OptimizerRecord.run``
                is_equal = _equal(_trial(optimizer, in_parts=False), _trial(optimizer, in_parts=True))
    except Exception as error:
        if was_tried:
            return
        raise AmpError(
            f"store_param_remainders=True steps on some params after others, and {name} could not be tried so: "
            f"{type(error).__name__}: {error}. {advice}"
        ) from error
    if not is_equal:
        raise AmpError(
            f"store_param_remainders=True steps on some params after others, and the step of {name} depends on all of "
            f"them: it gives other weights then. {advice}"
        )


def _needs_closure(optimizer):
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _trial(optimizer, in_parts):
    """Return params and state of a copy of the optimizer, with tiny params, after a few steps."""
    torch.manual_seed(0)
    twin = _tiny_copy(optimizer)
    params = [param for group in twin.param_groups for param in group["params"] if param.requires_grad]
    step = type(twin).step.__get__(twin)
    if callable(getattr(type(twin), "train", None)):  # schedule-free ones step in this mode only
        type(twin).train(twin)
    for size in GRADIENTS_TRIED:
        for index, param in enumerate(params):
            numbers = torch.arange(index, index + param.numel(), dtype=param.dtype, device=param.device)
            param.grad = numbers.cos_().mul_(size).view_as(param)
        parts = [([param], step) for param in params] if in_parts else []
        step_in_parts(twin, parts or [(params, step)])
    found = [(param.detach(), twin.state.get(param)) for param in params]
    of_all = {key: entry for key, entry in twin.state.items() if not isinstance(key, torch.Tensor)}
    return found, of_all, [_options(group) for group in twin.param_groups]


def _options(group):
    return {name: value for name, value in group.items() if name != "params"}


def _tiny_copy(optimizer):
    """Return a copy of an optimizer with the first few params of each group, tiny ones in float32."""
    memo, tiny = {}, {}
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for param in params:
        tiny[param] = memo[id(param)] = _tiny(param)
    memo[id(optimizer.state)] = state = defaultdict(dict)
    for key, entry in optimizer.state.items():
        if key not in tiny:  # of the whole optimizer, such as a count of its steps
            state[key] = copy.deepcopy(entry)
        elif not fake_tensors.is_fake_type(type(key)):
            cropped = _cropped(entry, key.shape, tiny[key])
            if cropped is not None:
                state[tiny[key]] = cropped
    kind = type(optimizer)
    twin = memo[id(optimizer)] = kind.__new__(kind)
    replaced = [name for name, value in vars(optimizer).items() if callable(value) and hasattr(kind, name)]
    own = {name: value for name, value in vars(optimizer).items() if name not in [STASH, *replaced]}
    vars(twin).update(copy.deepcopy(own, memo))
    for group in twin.param_groups:
        del group["params"][PARAMS_TRIED:]
    return twin


def _tiny(param):
    shape = torch.Size([min(extent, EXTENT) for extent in param.shape])
    device = "cpu" if fake_tensors.is_fake_type(type(param)) else param.device
    values = torch.linspace(0.5, 1.5, max(shape.numel(), 1), device=device)[: shape.numel()]
    return torch.nn.Parameter(values.view(shape), requires_grad=param.requires_grad)


def _cropped(entry, shape, param):
    """Return a copy of the state of a param of this shape for a tiny ``param``; None if it has other shapes."""
    found = {}
    for name, value in entry.items():
        if isinstance(value, torch.Tensor) and value.dim():
            if value.shape != shape:
                return None
            value = value[tuple(slice(extent) for extent in param.shape)]
            value = value.to(param.dtype) if value.is_floating_point() else value
        found[name] = copy.deepcopy(value)
    return found


def _equal(one, other):
    """Return whether two nested structures are equal, tensors bit for bit; NaN is equal to NaN."""
    if isinstance(one, torch.Tensor):
        is_alike = isinstance(other, torch.Tensor) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return is_alike and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other or one is other
