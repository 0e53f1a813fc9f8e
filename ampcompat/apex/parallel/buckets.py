"""Reduce gradients over processes in buckets while the backward pass is still running.

Ranks may use different params in a pass: after its gradients each bucket has one flag per param, summed with
them. A param that some rank used gets its gradient on all ranks; one that no rank used keeps None.

One backward pass (a bucket is launched when its last gradient has arrived, but never before the buckets in front of
it, so that every rank sends them in the same order):

    a gradient reaches an output, or a param    call ``finish`` at the end of this pass
    a param has its gradient                    launch the buckets at the front that are complete
    finish                                      launch the others; wait for all; copy back
"""

import threading
import weakref
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ... import tensor_lists
from ...errors import AmpError
from ...torch_compat import features
from .flat import flatten, master_of, unflatten


class Arithmetic(NamedTuple):
    """What is done to a bucket: divided by ``predivide``, summed (in float32 if ``wide``), then multiplied by
    ``predivide / world_size`` if ``average``."""

    average: bool
    predivide: float
    wide: bool

    def before(self, flat):
        """Return what is to be summed over the processes; may be ``flat`` itself."""
        # gloo supports bfloat16 in recent torch only; the sum in float32 is at least as exact.
        needs_wide = flat.dtype is getattr(torch, "bfloat16", None) and flat.device.type == "cpu"
        sent = flat.float() if (self.wide or needs_wide) and tensor_lists.is_narrower(flat, torch.float32) else flat
        return sent if self.predivide == 1.0 else sent.div_(self.predivide)

    def after(self, sent, world_size):
        """Divide the sum to an average, in place."""
        if self.average and self.predivide != world_size:
            sent.mul_(self.predivide / world_size)


class Bucket:
    """Some params of one dtype and device.

    Args:
        params: the params.
        group: the process group that reduces them, or None for all processes.
    """

    def __init__(self, params, group):
        self.params = params
        self.group = group
        self.flat = None  # the reduced gradients, if the plan keeps them
        self.restart()

    def restart(self):
        """Discard the state of a pass."""
        self.arrived = set()
        self._sent = self._work = self._lacking = None

    def is_complete(self):
        """Return whether every gradient of this pass has arrived."""
        return len(self.arrived) == len(self.params)

    def is_launched(self):
        """Return whether the collective was started."""
        return self._work is not None

    def launch(self, arithmetic):
        """Start the collective with the current gradients."""
        for param in self.params:
            if param.grad is not None and param.grad.is_sparse:
                param.grad = param.grad.to_dense()
        grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in self.params]
        self._lacking = [index for index, param in enumerate(self.params) if param.grad is None]
        marks = torch.ones(len(self.params), dtype=self.params[0].dtype, device=self.params[0].device)
        for index in self._lacking:
            marks[index] = 0
        self.flat = flatten([grad.detach() for grad in grads] + [marks])
        self._sent = arithmetic.before(self.flat)
        self._work = dist.all_reduce(self._sent, async_op=True, **({} if self.group is None else {"group": self.group}))

    def land(self, arithmetic, keeps_flat):
        """Wait for it and give the params their gradients: copies, or views of ``flat`` if ``keeps_flat``."""
        self._work.wait()
        arithmetic.after(self._sent, dist.get_world_size())
        if self._sent is not self.flat:
            self.flat.copy_(self._sent)
        lacking = self._unused_everywhere()
        used = [(index, param) for index, param in enumerate(self.params) if index not in lacking]
        views = unflatten(self.flat, self.params)
        targets = []
        for index, param in used:
            if keeps_flat:
                param.grad = views[index].data  # .data is no view for autograd; detach_() fails on views
            elif param.grad is None:
                param.grad = views[index].clone()
            else:
                targets.append((param.grad.detach(), views[index]))
        if targets:
            tensor_lists.copy_(*map(list, zip(*targets)))
        if not keeps_flat:
            self.flat = None
        self.restart()

    def _unused_everywhere(self):
        """Return the indices of the params that no rank has used; reads from the device only if there may be any."""
        if not self._lacking:
            return set()
        marks = self.flat[-len(self.params) :].tolist()
        return {index for index in self._lacking if marks[index] == 0}


class Plan(NamedTuple):
    """How to divide params into buckets and when to send them.

    ``size``: elements after which a bucket is closed. ``triggers``: ids of the params that close one instead, if any.
    ``delays``: send nothing before the end of a pass. ``keeps_flat``: keep the reduced buffers. ``groups``: process
    groups that are used in rotation.
    """

    size: int
    triggers: frozenset
    delays: bool
    keeps_flat: bool
    groups: Any


def make_buckets(params, plan):
    """Return buckets of ``params`` in the order in which backward is expected to reach them: the last come first."""
    runs, open_runs = [], {}
    for param in reversed(params):
        key = (param.dtype, param.device)
        run = open_runs.setdefault(key, [])
        run.append(param)
        full = id(param) in plan.triggers if plan.triggers else sum(each.numel() for each in run) >= plan.size
        if full:
            runs.append(open_runs.pop(key))
    runs.extend(open_runs.values())
    return [Bucket(run, plan.groups[index % len(plan.groups)]) for index, run in enumerate(runs)]


class BackwardReduction:
    """Reduces the gradients of ``params`` in every backward pass that reaches one of them.

    Args:
        params: the params, in the module's order.
        plan: a ``Plan``.
        arithmetic: an ``Arithmetic``.
    """

    def __init__(self, params, plan, arithmetic):
        self.buckets = make_buckets(params, plan)
        self.enabled = True
        self.has_local = False  # whether there were unreduced passes since the last reduction
        self._plan = plan
        self._arithmetic = arithmetic
        self._is_awaited = False
        self._nodes = []
        self._handles = []
        self._lock = threading.Lock()  # autograd has a thread for each device
        this = weakref.ref(self)
        for bucket in self.buckets:
            for param in bucket.params:
                self._watch(param, _arrival(this, bucket, id(param)))

    def close(self):
        """Remove the hooks."""
        for hook in self._handles:
            hook.remove()
        self._handles, self._nodes = [], []

    def restart(self):
        """Discard the state of a backward pass that did not finish."""
        self._is_awaited = False
        for bucket in self.buckets:
            bucket.restart()

    def _watch(self, param, arrived):
        if hasattr(param, "register_post_accumulate_grad_hook"):  # torch 2.1 and later
            self._handles.append(param.register_post_accumulate_grad_hook(arrived))
            return
        with torch.enable_grad():
            node = param.expand_as(param).grad_fn.next_functions[0][0]
        self._nodes.append(node)  # torch holds it weakly
        self._handles.append(node.register_hook(arrived))

    def watch_output(self, output):
        """Call ``finish`` at the end of the pass that reaches ``output`` first.

        Hooks of the params are not enough: activation checkpointing runs nested backward passes with callbacks of their
        own.
        """

        def reached(grad):
            if self.enabled:  # the output keeps this alive, even if the wrapper is dropped before backward
                self.expect_end()

        output.register_hook(reached)

    def expect_end(self):
        """Call ``finish`` at the end of the pass that is running now, once."""
        # A nested backward pass can drop the queued callback, so it is queued again. Reducing twice is harmless,
        # since an average does not change when it is averaged again.
        if not self._is_awaited or not features.queued_callbacks_survive():
            self._is_awaited = True
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def arrived(self, bucket, key):
        """Record a gradient, and launch complete buckets."""
        if bucket.is_launched():
            raise AmpError(
                "A param received a second gradient in one backward pass, after the first had been sent to the other "
                "processes: reentrant checkpointing of shared layers does that. Construct DistributedDataParallel with "
                "delay_allreduce=True."
            )
        bucket.arrived.add(key)
        self.expect_end()
        if not self._plan.delays:
            for front in self.buckets:
                if not front.is_complete():
                    break
                if not front.is_launched():
                    front.launch(self._arithmetic)

    def finish(self):
        """Reduce what has not been sent yet, wait for all, and copy back."""
        try:
            if any(bucket.arrived for bucket in self.buckets):  # torch.autograd.grad reaches outputs, but no param
                with torch.no_grad():
                    for bucket in self.buckets:
                        if not bucket.is_launched():
                            bucket.launch(self._arithmetic)
                    for bucket in self.buckets:
                        bucket.land(self._arithmetic, self._plan.keeps_flat)
                    self._reduce_masters()
        finally:
            self.restart()

    def _reduce_masters(self):
        """Reduce gradients that amp has moved from unreduced half params to their masters."""
        if not self.has_local:
            return
        self.has_local = False
        masters = [master_of(param) for bucket in self.buckets for param in bucket.params]
        for bucket in make_buckets([master for master in masters if master is not None], self._plan):
            bucket.launch(self._arithmetic)
            bucket.land(self._arithmetic, False)


def _arrival(this, bucket, key):
    """Return a hook that records a gradient with the reduction behind a weak reference."""

    def hook(*unused):
        reduction = this()
        if reduction is not None and reduction.enabled:
            with torch.no_grad(), reduction._lock:
                reduction.arrived(bucket, key)

    return hook
