"""All-reduce gradients in buckets while the backward pass is still running.

Ranks may use different params in a pass: each bucket has one flag per param after its gradients, which is summed with
them. A param that some rank used gets its gradient on all ranks; a param that no rank used keeps None.

One backward pass (a bucket is launched when its last gradient is ready, but never before earlier buckets, so that every
rank sends them in the same order):

    a gradient reaches an output, or a param    call ``finish`` at the end of this pass
    a param has its gradient                    launch the buckets at the front that are complete
    finish                                      launch the others; wait for all; copy back
"""

import threading
import weakref
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...engine.session import process_state
from ...errors import AmpError
from ...support import tensor_lists
from ...support.torch_compat import features
from ...support.torch_compat.thread_context import in_process_group
from ..multi_tensor.functions import flatten, unflatten


class ReductionOptions(NamedTuple):
    """How gradients are divided into buckets, and how a bucket is reduced.

    Attributes:
        bucket_size: elements after which a bucket is closed.
        trigger_params: ids of the params that close a bucket instead, if any.
        delay_allreduce: send nothing before the end of a pass.
        retain_buffers: keep the reduced buffers; gradients are views of them.
        groups: process groups that are used in rotation; None means all processes.
        average: multiply the sum by ``predivide_factor / world_size``.
        predivide_factor: divide by it before the sum.
        always_fp32: sum half gradients in float32.
    """

    bucket_size: int
    trigger_params: frozenset
    delay_allreduce: bool
    retain_buffers: bool
    groups: Any
    average: bool
    predivide_factor: float
    always_fp32: bool


class Bucket:
    """Some params of one dtype and device, reduced by a process group, or by all processes if that is None."""

    def __init__(self, params, group, options):
        self.params = params
        self.group = group
        self.flat = None  # the reduced gradients, if they are retained
        self._options = options
        self.reset()

    def reset(self):
        """Discard the state of a pass."""
        self.ready_params = set()  # ids
        self._sent = self._work = self._without_grad = None

    def is_launched(self):
        """Return whether the collective was started."""
        return self._work is not None

    def launch(self):
        """Start the collective with the current gradients."""
        for param in self.params:
            if param.grad is not None and param.grad.is_sparse:
                param.grad = param.grad.to_dense()
        grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in self.params]
        self._without_grad = [index for index, param in enumerate(self.params) if param.grad is None]
        used_flags = torch.ones(len(self.params), dtype=self.params[0].dtype, device=self.params[0].device)
        for index in self._without_grad:
            used_flags[index] = 0
        self.flat = flatten([grad.detach() for grad in grads] + [used_flags])
        self._sent = self._prepared(self.flat)
        group = dist.group.WORLD if self.group is None else self.group
        self._work = dist.all_reduce(self._sent, group=group, async_op=True)

    def _prepared(self, flat):
        """Return the tensor to sum over the processes; may be ``flat`` itself."""
        # gloo supports bfloat16 only in recent torch; the sum in float32 is at least as exact.
        in_fp32 = self._options.always_fp32 or (
            flat.dtype is getattr(torch, "bfloat16", None) and flat.device.type == "cpu"
        )
        sent = flat.float() if in_fp32 and tensor_lists.is_narrower(flat, torch.float32) else flat
        return sent if self._options.predivide_factor == 1.0 else sent.div_(self._options.predivide_factor)

    def finish(self, retain_buffers):
        """Wait for it and set the gradients of the params: copies, or views of ``flat`` if ``retain_buffers``."""
        self._work.wait()
        factor, world_size = self._options.predivide_factor, dist.get_world_size()
        if self._options.average and factor != world_size:
            self._sent.mul_(factor / world_size)
        if self._sent is not self.flat:
            self.flat.copy_(self._sent)
        unused = self._unused_on_all_ranks()
        targets, sources = [], []
        for index, (param, view) in enumerate(zip(self.params, unflatten(self.flat, self.params))):
            if index in unused:
                continue
            if retain_buffers:
                param.grad = view.data  # .data is not a view for autograd; detach_() fails on views
            elif param.grad is None:
                param.grad = view.clone()
            else:
                targets.append(param.grad.detach())
                sources.append(view)
        tensor_lists.copy_(targets, sources)
        if not retain_buffers:
            self.flat = None
        self.reset()

    def _unused_on_all_ranks(self):
        """Return the indices of the params that no rank has used; reads from the device only if there may be any."""
        if not self._without_grad:
            return set()
        used_flags = self.flat[-len(self.params) :].tolist()
        return {index for index in self._without_grad if used_flags[index] == 0}


def make_buckets(params, options):
    """Return buckets of ``params`` in the order in which backward is expected to reach them: last params first."""
    param_lists, open_lists = [], {}
    for param in reversed(params):
        key = (param.dtype, param.device)
        members = open_lists.setdefault(key, [])
        members.append(param)
        if options.trigger_params:
            is_full = id(param) in options.trigger_params
        else:
            is_full = sum(each.numel() for each in members) >= options.bucket_size
        if is_full:
            param_lists.append(open_lists.pop(key))
    param_lists.extend(open_lists.values())
    groups = options.groups
    return [Bucket(members, groups[index % len(groups)], options) for index, members in enumerate(param_lists)]


class BackwardReduction:
    """All-reduces gradients in every backward pass that reaches one of the params with hooks."""

    def __init__(self, options, enabled=True):
        self.buckets = []
        self.enabled = enabled
        self.has_unreduced_passes = not enabled  # since the last reduction
        self._options = options
        self._hooked_params = None
        self._is_finish_queued = False
        self._nodes = []
        self._handles = []
        self._lock = threading.Lock()  # autograd has a thread for each device

    def __reduce__(self):  # hooks and process groups are not copied
        return BackwardReduction, (self._options._replace(groups=[None]), self.enabled)

    def set_enabled(self, enabled):
        """Enable or disable the all-reduce of gradients in later passes."""
        self.enabled = enabled
        self.has_unreduced_passes |= not enabled

    def register_hooks(self, params):
        """Register hooks on params, in the module's order; return whether the params differ from those before."""
        hooked_params = [(id(param), param.dtype, param.device) for param in params]
        if hooked_params == self._hooked_params:
            return False
        for hook in self._handles:
            hook.remove()
        self._handles, self._nodes, self._hooked_params = [], [], hooked_params
        self.buckets = make_buckets(params, self._options)
        reference = weakref.ref(self)
        for bucket in self.buckets:
            for param in bucket.params:
                self._register_hook(param, _grad_hook(reference, bucket, id(param)))
        return True

    def reset(self):
        """Discard the state of a backward pass that did not finish."""
        self._is_finish_queued = False
        for bucket in self.buckets:
            bucket.reset()

    def _register_hook(self, param, hook):
        if hasattr(param, "register_post_accumulate_grad_hook"):  # torch 2.1 and later
            self._handles.append(param.register_post_accumulate_grad_hook(hook))
            return
        with torch.enable_grad():
            node = param.expand_as(param).grad_fn.next_functions[0][0]
        self._nodes.append(node)  # torch references it weakly
        self._handles.append(node.register_hook(hook))

    def register_output_hook(self, output):
        """Call ``finish`` at the end of the pass that reaches ``output`` first.

        Hooks on the params are not enough: activation checkpointing runs nested backward passes with their own
            callbacks.
        """

        def hook(grad):
            if self.enabled:  # the output references this, even if the wrapper is dropped before backward
                self.queue_finish()

        output.register_hook(hook)

    def queue_finish(self):
        """Call ``finish`` once at the end of the running pass."""
        # A nested backward pass can drop the queued callback, so it is queued again. Reducing twice is harmless,
        # since an average does not change when it is averaged again.
        if not self._is_finish_queued or not features.queued_callbacks_survive():
            self._is_finish_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def grad_is_ready(self, bucket, param_id):
        """Record a gradient, and launch complete buckets."""
        if bucket.is_launched():
            raise AmpError(
                "A param received a second gradient in one backward pass, after the first had been sent to the other "
                "processes: reentrant checkpointing of shared layers does that. Construct DistributedDataParallel with "
                "delay_allreduce=True."
            )
        bucket.ready_params.add(param_id)
        self.queue_finish()
        if not self._options.delay_allreduce:
            for front in self.buckets:
                if len(front.ready_params) < len(front.params):
                    break
                if not front.is_launched():
                    front.launch()

    def finish(self):
        """Reduce what has not been sent yet, wait for all, and copy back."""
        try:
            if any(bucket.ready_params for bucket in self.buckets):  # torch.autograd.grad reaches outputs, but no param
                with torch.no_grad():
                    for bucket in self.buckets:
                        if not bucket.is_launched():
                            bucket.launch()
                    for bucket in self.buckets:
                        bucket.finish(self._options.retain_buffers)
                    self._reduce_masters()
        finally:
            self.reset()

    def _reduce_masters(self):
        """Reduce gradients that amp has moved from unreduced half params to their masters."""
        if not self.has_unreduced_passes:
            return
        self.has_unreduced_passes = False
        masters = [master_of(param) for bucket in self.buckets for param in bucket.params]
        for bucket in make_buckets([master for master in masters if master is not None], self._options):
            bucket.launch()
            bucket.finish(retain_buffers=False)


def _grad_hook(reference, bucket, param_id):
    """Return a hook that reports a gradient to the reduction, through a weak reference."""

    def hook(*unused):
        reduction = reference()
        if reduction is not None and reduction.enabled:
            with torch.no_grad(), reduction._lock:
                reduction.grad_is_ready(bucket, param_id)

    return hook


def flat_dist_call(tensor_list, call, extra_args=None):
    """Call a collective of ``torch.distributed`` once per dtype and device, in place: on one flat copy of the tensors.

    Args:
        tensor_list: dense tensors, in the same order on every rank.
        call: such as ``dist.broadcast``; after ``dist.all_reduce`` the sums are divided by the number of processes.
        extra_args: arguments of ``call`` after the tensor, such as ``(0,)``.
    """
    with torch.no_grad():
        for group in tensor_lists.grouped(tensor_list):
            flat = flatten(group)
            call(flat, *(extra_args or ()))
            if call is dist.all_reduce:
                flat /= dist.get_world_size()
            tensor_lists.copy_([tensor.detach() for tensor in group], unflatten(flat, group))


def broadcast_params(module):
    """Broadcast the params of rank 0 to all ranks; those that amp has cast through their float32 masters."""
    if not in_process_group():
        return
    for session in process_state.sessions:
        if session.enabled:
            session.refresh_masters()
    params = list(module.parameters())
    masters = [master_of(param) for param in params]
    sources = [param if master is None else master for param, master in zip(params, masters)]
    flat_dist_call(sources, dist.broadcast, (0,))
    with torch.no_grad():
        for param, source in zip(params, sources):
            if source is not param:
                param.copy_(source)


def master_of(param):
    """Return the float32 master that amp keeps of a half param, or None."""
    for session in process_state.sessions:
        if session.enabled and session.masters.find(param) is not None:
            return session.masters.find(param)
    return None
