"""``DistributedDataParallel`` and ``Reducer`` with Apex's arguments; they average gradients over the ranks.

Call ``amp.initialize`` first, then wrap the model that it returned. Gradients are reduced while they are still
scaled, so an overflow on one rank is an overflow on all. ``buckets`` decides when and how gradients are sent.
"""

from collections.abc import Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ...engine.session import process_state
from ...errors import AmpError, AmpTypeError, AmpValueError
from ...support.torch_compat.thread_context import in_process_group
from ..package_names import REDUCTION_METHODS
from .buckets import BackwardReduction, ReductionOptions, broadcast_params, flat_dist_call


class DistributedDataParallel(torch.nn.Module):
    """Wraps a module so that each backward pass leaves the same, averaged gradients on every rank.

    The params of rank 0 are broadcast at construction. A gradient that is in ``.grad`` before the pass (accumulation
    after ``disable_allreduce``) is reduced together with the new one.

    Args:
        module: the module; its keys in ``state_dict`` get the prefix ``module.``.
        message_size: the approximate number of elements per message.
        delay_allreduce: send everything at the end of the backward pass.
        shared_param: raises an error, as in Apex; shared params need no option.
        allreduce_trigger_params: params that end a message, instead of ``message_size``.
        retain_allreduce_buffers: keep the reduced buffers in ``allreduce_buffers``; gradients are views of them.
        allreduce_always_fp32: sum half gradients in float32.
        num_allreduce_streams: the number of process groups whose messages are sent in parallel.
        allreduce_communicators: ``(process groups, streams)`` to use for that; ``torch.distributed`` uses its own
            streams.
        gradient_average: divide the sum by the number of processes. Without it, the result is
            ``sum / gradient_predivide_factor``.
        gradient_predivide_factor: the part of that division that is done before the sum, to avoid overflow in half.
        gradient_average_split_factor: the older name of ``gradient_predivide_factor``.
        prof: accepted, no effect; torch's profiler records the collectives without it.
    """

    def __init__(
        self,
        module,
        message_size=10000000,
        delay_allreduce=False,
        shared_param=None,
        allreduce_trigger_params=None,
        retain_allreduce_buffers=False,
        allreduce_always_fp32=False,
        num_allreduce_streams=1,
        allreduce_communicators=None,
        gradient_average=True,
        gradient_predivide_factor=1.0,
        gradient_average_split_factor=None,
        prof=False,
    ):
        super().__init__()
        _check_subclass(type(self))
        _check(shared_param, delay_allreduce, allreduce_trigger_params, num_allreduce_streams, allreduce_communicators)
        self.module = module
        self.message_size = message_size
        self.delay_allreduce = bool(delay_allreduce)
        self.retain_allreduce_buffers = bool(retain_allreduce_buffers)
        self.gradient_average = bool(gradient_average)
        older_name = gradient_average_split_factor
        self.gradient_predivide_factor = float(gradient_predivide_factor if older_name is None else older_name)
        self.allreduce_always_fp32 = bool(allreduce_always_fp32)
        self.prof = prof
        groups = _groups(num_allreduce_streams, allreduce_communicators)
        self._reduction = BackwardReduction(self._options(allreduce_trigger_params, groups))
        broadcast_params(module)
        for session in process_state.sessions if in_process_group() else ():
            if session.enabled:
                session.ddp_wrappers.compare_arithmetic(module)
        self._register_hooks()

    def _options(self, trigger_params, groups):
        return ReductionOptions(
            bucket_size=self.message_size,
            trigger_params=frozenset(map(id, trigger_params or ())),
            delay_allreduce=self.delay_allreduce,
            retain_buffers=self.retain_allreduce_buffers,
            groups=groups,
            average=self.gradient_average,
            predivide_factor=self.gradient_predivide_factor,
            always_fp32=self.allreduce_always_fp32,
        )

    def forward(self, *inputs, **kwargs):
        """Run the module; gradients will be reduced in the backward pass of its outputs."""
        result = self.module(*inputs, **kwargs)
        if torch.is_grad_enabled() and self._reduction.enabled and in_process_group():
            self._register_hooks()
            self._reduction.reset()
            for output in _tensors(result, set()):
                if output.requires_grad and output.grad_fn is not None:
                    self._reduction.register_output_hook(output)
        return result

    def enable_allreduce(self):
        """Reduce gradients from the next backward pass on."""
        self._reduction.set_enabled(True)

    def disable_allreduce(self):
        """Do not reduce gradients until ``enable_allreduce``."""
        self._reduction.set_enabled(False)

    @property
    def allreduce_buffers(self):
        """The reduced gradients of the last pass, one vector per message, if ``retain_allreduce_buffers``."""
        buckets = self._reduction.buckets
        sizes = [sum(param.numel() for param in bucket.params) for bucket in buckets]
        return [None if bucket.flat is None else bucket.flat[:size] for bucket, size in zip(buckets, sizes)]

    @contextmanager
    def no_sync(self):
        """Return a context in which gradients are not reduced, as in torch's DistributedDataParallel."""
        before = self._reduction.enabled
        self._reduction.set_enabled(False)
        try:
            yield
        finally:
            self._reduction.set_enabled(before)

    @property
    def has_local_gradients(self):
        """Whether there was an unreduced pass since the last reduction."""
        return self._reduction.has_unreduced_passes

    def _register_hooks(self):
        """Register hooks on the params that are currently trained; params may have been frozen, cast or replaced."""
        params = [param for param in self.module.parameters() if param.requires_grad]
        if in_process_group() and self._reduction.register_hooks(params):
            for session in process_state.sessions:
                if session.enabled:
                    session.ddp_wrappers.add(self)


class Reducer:
    """Averages gradients at each call of ``reduce``: those in a given list, or of a module.

    The params of the module are broadcast from rank 0 at construction.
    """

    def __init__(self, module_or_grads_list):
        self.module = self.grads = None
        if isinstance(module_or_grads_list, torch.nn.Module):
            self.module = module_or_grads_list
            broadcast_params(self.module)
        elif isinstance(module_or_grads_list, (list, tuple)):
            self.grads = list(module_or_grads_list)
        else:
            raise AmpTypeError(
                f"Reducer takes a module or a list of gradients, not {type(module_or_grads_list).__name__}."
            )

    def reduce(self):
        """Average the gradients over all processes, in place."""
        grads = self.grads
        if grads is None:
            grads = [param.grad for param in self.module.parameters() if param.grad is not None]
        if in_process_group():
            flat_dist_call(grads, dist.all_reduce)


def _check_subclass(kind):
    """Raise an error for a subclass with its own reduction of gradients, which would never be called."""
    for name in REDUCTION_METHODS:
        if hasattr(kind, name):
            raise AmpError(
                f"{kind.__name__}.{name} would never be called: ampcompat's DistributedDataParallel has no such "
                "method. Leave out the subclass; for other process groups give allreduce_communicators=([group], "
                "[None]), or call disable_allreduce() and reduce the gradients in the scale_loss block."
            )


def _check(shared_param, delay_allreduce, triggers, streams, communicators):
    if shared_param is not None:
        raise AmpValueError("shared_param is no longer an option: shared params work as they are.")
    if triggers is not None and delay_allreduce:
        raise AmpValueError("allreduce_trigger_params and delay_allreduce=True exclude each other: pass only one.")
    if communicators is not None and len(communicators[0]) != streams:
        raise AmpValueError(
            f"allreduce_communicators has {len(communicators[0])} process groups, num_allreduce_streams is {streams}."
        )


def _groups(streams, communicators):
    if communicators is not None:
        return list(communicators[0])
    if streams == 1 or not in_process_group():
        return [None]
    return [dist.new_group(list(range(dist.get_world_size()))) for _ in range(streams)]


def _tensors(value, seen):
    """Yield the tensors in nested containers and dataclasses; otherwise the hooks on the params are enough."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        parts = list(value)
    else:
        parts = [getattr(value, name, None) for name in getattr(value, "__dataclass_fields__", ())]
    if parts and id(value) not in seen:
        seen.add(id(value))
        for part in parts:
            for found in _tensors(part, seen):
                yield found
