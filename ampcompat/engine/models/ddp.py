"""Data-parallel training beyond what DistributedDataParallel does: masters are broadcast, their gradients averaged.

The masters are broadcast when a model is wrapped. Gradients that were moved to masters under ``no_sync`` are averaged
when a later pass is reduced. A warning is issued if the ranks' CPUs compute half arithmetic differently.
"""

import warnings
import weakref

import torch

from ...support import tensor_lists
from ...support.live_objects import live_keys
from ...support.torch_compat.thread_blocks import grad_enabled
from ...support.torch_compat.thread_context import world_size
from ..casting import emulated_half_arithmetic
from ..loss_scaling import overflow_check

#: Where a wrapper's unreduced gradients of earlier passes are: there are none, in ``.grad`` of the params, in masters.
NONE, IN_PLACE, IN_MASTERS = range(3)


class ReductionHook:
    """A forward pre-hook that records whether the last pass of a DistributedDataParallel will be reduced.

    torch decides this in ``forward``: leaving ``no_sync`` before the backward pass does not change it.
    """

    def __init__(self):
        self.reduces = True

    def __call__(self, wrapper, inputs):
        """Read the wrapper's flag, unless gradients are disabled."""
        if torch.is_grad_enabled():
            self.reduces = wrapper.require_backward_grad_sync


class DDPWrappers:
    """The wrappers of a session, and which of their gradients the ranks have not averaged yet.

    A wrapper is torch's DistributedDataParallel, or any module with ``module`` and ``has_local_gradients`` that reduces
    masters by itself.

    Args:
        find_master: returns the master of a half param, or None.
        refresh_masters: updates masters whose half params were written to.
    """

    def __init__(self, find_master, refresh_masters):
        self._find_master = find_master
        self._refresh_masters = refresh_masters
        self._unreduced = weakref.WeakKeyDictionary()  # wrapper -> NONE, IN_PLACE or IN_MASTERS; in order of wrapping
        self._hooks = weakref.WeakKeyDictionary()  # torch's wrapper -> (ReductionHook, its handle)
        self._casts_weights = False
        self._is_patched = False
        self._low = None
        self._has_warned = False

    def patch(self, policy, patches):
        """Add every model that torch's DistributedDataParallel wraps from now on.

        Args:
            policy: the ``Policy``; where it casts weights, masters are broadcast.
        """
        self._casts_weights = self._casts_weights or policy.casts_model
        self._low = policy.dtypes.low if policy.casts_model or policy.patch_torch_functions else None
        if self._is_patched or not torch.distributed.is_available():
            return
        patches.defer(self._close)
        self._is_patched = True
        patches.wrap(torch.nn.parallel.DistributedDataParallel, "__init__", self._wrapped)

    def _wrapped(self, init, wrapper, module, *args, **kwargs):
        init(wrapper, module, *args, **kwargs)
        self.watch(wrapper)
        # torch broadcasts the half weights only (old torch what ``state_dict`` returns, a float32 copy). Ranks that
        # started from other seeds would keep their own masters, round them into the weights and diverge.
        if self._casts_weights:
            self._refresh_masters()
            _broadcast(module, wrapper.process_group, self._find_master)
        self.compare_arithmetic(module, wrapper.process_group)

    def _close(self):
        self._is_patched = self._casts_weights = self._has_warned = False
        self._low = None
        self._unreduced.clear()
        for _, hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def watch(self, wrapper):
        """Add a DistributedDataParallel, and record from now on which of its passes will be reduced."""
        self.add(wrapper)
        if wrapper not in self._hooks:
            hook = ReductionHook()
            self._hooks[wrapper] = hook, wrapper.register_forward_pre_hook(hook)

    def add(self, wrapper):
        """Add a wrapper."""
        self._unreduced.setdefault(wrapper, NONE)

    def compare_arithmetic(self, module, group=True):
        """Warn once, on every rank, if the CPUs of the ranks do not compute the low dtype alike.

        Call it on every rank of the group when a model on the CPU is wrapped.
        """
        is_on_cpu = all(param.device.type == "cpu" for param in module.parameters())
        if self._low is None or not is_on_cpu:
            return
        emulates = overflow_check.compared(int(emulated_half_arithmetic.is_wanted(self._low)), group)
        if len(set(emulates)) > 1 and not self._has_warned:
            self._has_warned = True
            warnings.warn(emulated_half_arithmetic.difference(self._low, emulates), stacklevel=3)

    def are_weights_shared_by_hand(self):
        """Return whether there are other ranks but no wrapper, so that only the script itself can share weights."""
        return not self._unreduced and world_size() > 1

    def exist(self):
        """Return whether there is any wrapper."""
        return bool(self._unreduced)

    # -- around a pass -------------------------------------------------------------------------------------------------

    def move_to_masters(self, records):
        """Record that gradients which ``delay_unscale`` left in place move to their masters before the next pass."""
        for wrapper in self._of(records, IN_PLACE):
            self._unreduced[wrapper] = IN_MASTERS

    def have_unreduced_gradients(self, records):
        """Return whether earlier passes have left gradients that were not reduced."""
        return bool(self._of(records, IN_PLACE))

    def record_unreduced(self, records, stay):
        """Record and return whether the pass that ends now has left gradients that were not reduced.

        Args:
            stay: whether they stay in ``.grad``, so that the next reduced pass includes them.
        """
        unreduced = self._of(records, NONE, self._is_local)
        for wrapper in unreduced:
            self._unreduced[wrapper] = max(self._unreduced[wrapper], IN_PLACE if stay else IN_MASTERS)
        return bool(unreduced)

    def average(self, records):
        """After a reduced pass, average the gradients in masters of earlier passes; some wrappers do so themselves.

        Half gradients leave ``.grad`` when ``scale_loss`` exits, so torch's reduction does not include those passes.

        Returns:
            The process groups whose ranks had unreduced gradients in masters, in the same order on every rank.
        """
        groups = []
        for wrapper in self._of(records, IN_PLACE, lambda wrapper: not self._is_local(wrapper)):
            group = getattr(wrapper, "process_group", None) or True
            if self._unreduced[wrapper] == IN_MASTERS:
                groups.append(group)
                if wrapper in self._hooks:
                    masters = [self._find_master(param) for param in wrapper.module.parameters()]
                    _average([master for master in masters if master is not None and master.requires_grad], group)
            self._unreduced[wrapper] = NONE
        return groups

    def _of(self, records, least, accepts=lambda wrapper: True):
        """Return the wrappers whose state is at least ``least`` and that share params with records."""
        wrappers = [each for each in live_keys(self._unreduced) if self._unreduced[each] >= least and accepts(each)]
        if not wrappers:
            return []
        leaf_params = {id(param) for record in records for param in record.leaf_params()}
        return [each for each in wrappers if any(id(param) in leaf_params for param in each.module.parameters())]

    def _is_local(self, wrapper):
        """Return whether the wrapper has left the last backward pass unreduced."""
        if wrapper in self._hooks:
            return not self._hooks[wrapper][0].reduces
        return wrapper.has_local_gradients


def _average(params, group):
    """Replace the gradients of ``params`` by their averages over the ranks. It stays None if no rank has one."""
    for alike in _batches(params):
        for param in alike:
            if param.grad is not None and param.grad.is_sparse:
                param.grad = param.grad.to_dense()
        has = [param.grad is not None for param in alike]
        parts = [(param.grad if there else torch.zeros_like(param)).reshape(-1) for param, there in zip(alike, has)]
        flat = torch.cat(parts + [torch.tensor(has, dtype=parts[0].dtype, device=parts[0].device)])
        torch.distributed.all_reduce(flat, **overflow_check.group_option(group))
        marks = has if all(has) else flat[-len(alike) :].tolist()
        flat.div_(torch.distributed.get_world_size(**overflow_check.group_option(group)))
        start = 0
        for param, mark in zip(alike, marks):
            mean = flat[start : start + param.numel()].view(param.shape)
            start += param.numel()
            if param.grad is not None:
                param.grad.copy_(mean)
            elif mark:
                param.grad = mean.clone()


def _batches(params):
    """Return lists of params of one dtype and device, of a bounded size each."""
    runs = []
    for alike in tensor_lists.grouped(params):
        size = tensor_lists.CHUNK
        for param in alike:
            if size + param.numel() > tensor_lists.CHUNK:
                runs.append([])
                size = 0
            runs[-1].append(param)
            size += param.numel()
    return runs


def _broadcast(module, group, find_master):
    """Give every rank the masters, params and buffers of the first rank."""
    # Older torch lacks this; there the group of all ranks is assumed.
    ranks_of = getattr(torch.distributed, "get_process_group_ranks", lambda group: [0])
    with grad_enabled(False):
        for tensor in list(module.parameters()) + list(module.buffers()):
            master = find_master(tensor)
            torch.distributed.broadcast(tensor if master is None else master, ranks_of(group)[0], group=group)
            if master is not None:
                tensor.copy_(master)
