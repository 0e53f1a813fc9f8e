"""What ranks that share a model owe each other, beyond what DistributedDataParallel does by itself.

Owns: the broadcast of masters when a model is wrapped; the average of gradients that passes under ``no_sync`` have
moved to masters.
Must not touch: what DistributedDataParallel does; it has done it when this begins.
The surprise: half gradients leave ``.grad`` when ``scale_loss`` exits, so the pass that reduces again finds nothing
there of the passes before it. And wrapping broadcasts the half weights only (in old torch what ``state_dict`` returns,
which is a float32 copy): ranks that began with other seeds would keep their own masters, round those into the weights
again, and train apart in silence.
"""

import functools
import weakref

import torch

from . import tensors

#: What passes that were not reduced have left of a wrapper's gradients.
NOTHING, IN_PLACE, IN_MASTERS = range(3)


class Watch:
    """A forward pre-hook that knows whether the last pass of one of torch's wrappers will be reduced.

    torch decides it there: leaving ``no_sync`` before the backward pass does not change it.
    """

    def __init__(self):
        self.reduces = True

    def __call__(self, wrapper, inputs):
        """Look at the wrapper, unless the pass will have no backward one."""
        if torch.is_grad_enabled():
            self.reduces = wrapper.require_backward_grad_sync


class Replicas:
    """The wrappers that a session has seen, and what their ranks have not shared yet.

    A wrapper is torch's DistributedDataParallel, or any module with ``module`` and ``has_local_gradients`` that reduces
    masters by itself.

    Args:
        find_master: returns the master of a half param, or None.
    """

    def __init__(self, find_master):
        self._find_master = find_master
        self._left = weakref.WeakKeyDictionary()  # wrapper -> NOTHING, IN_PLACE or IN_MASTERS, in the order of wrapping
        self._watches = weakref.WeakKeyDictionary()  # torch's wrapper -> (Watch, its handle)
        self._broadcasts = False
        self._follows = False

    def follow(self, casts_weights, patches):
        """Notice every model that torch's DistributedDataParallel wraps from now on.

        Args:
            casts_weights: whether weights are cast, and masters have to be broadcast.
            patches: the ``PatchStack`` that undoes it.
        """
        self._broadcasts = self._broadcasts or casts_weights
        if self._follows or not torch.distributed.is_available():
            return
        self._follows = True
        patches.defer(self._forget)
        wrapper = torch.nn.parallel.DistributedDataParallel
        original = wrapper.__init__

        @functools.wraps(original)
        def __init__(replica, module, *args, **kwargs):
            original(replica, module, *args, **kwargs)
            self.add(replica)
            watch = Watch()
            self._watches[replica] = watch, replica.register_forward_pre_hook(watch)
            if self._broadcasts:
                _broadcast(module, replica.process_group, self._find_master)

        patches.set(wrapper, "__init__", __init__)

    def _forget(self):
        self._follows = self._broadcasts = False
        self._left.clear()
        for _, hook in self._watches.values():
            hook.remove()
        self._watches.clear()

    def add(self, wrapper):
        """Notice a wrapper."""
        self._left.setdefault(wrapper, NOTHING)

    def are_there(self):
        """Return whether there is any wrapper to ask."""
        return bool(self._left)

    # -- around a pass -------------------------------------------------------------------------------------------------

    def note_moved(self, adapters):
        """Note that gradients which ``delay_unscale`` left in place go to their masters before the next pass."""
        for wrapper in self._of(adapters, IN_PLACE):
            self._left[wrapper] = IN_MASTERS

    def have_left(self, adapters):
        """Return whether earlier passes have left gradients that are this rank's own."""
        return bool(self._of(adapters, IN_PLACE))

    def note_local(self, adapters, stay):
        """Return whether the pass that ends now has left gradients that are this rank's own.

        Args:
            adapters: of the pass.
            stay: they stay in ``.grad``, where the next pass that is reduced will find them.
        """
        held = self._of(adapters, NOTHING, self._is_local)
        for wrapper in held:
            self._left[wrapper] = max(self._left[wrapper], IN_PLACE if stay else IN_MASTERS)
        return bool(held)

    def average(self, adapters):
        """Average what passes have moved to masters, now that one was reduced; some wrappers have done so themselves.

        Returns:
            The process groups whose ranks had gradients of their own, in the same order on all of them.
        """
        groups = []
        for wrapper in self._of(adapters, IN_PLACE, lambda wrapper: not self._is_local(wrapper)):
            group = getattr(wrapper, "process_group", None) or True
            if self._left[wrapper] == IN_MASTERS:
                groups.append(group)
                if wrapper in self._watches:
                    masters = [self._find_master(param) for param in wrapper.module.parameters()]
                    _average([master for master in masters if master is not None and master.requires_grad], group)
            self._left[wrapper] = NOTHING
        return groups

    def _of(self, adapters, least, accepts=lambda wrapper: True):
        """Return the wrappers, with at least so much left, that share params with adapters."""
        wrappers = [wrapper for wrapper, left in self._left.items() if left >= least and accepts(wrapper)]
        if not wrappers:
            return []
        reached = {id(param) for adapter in adapters for param in adapter.reached()}
        return [each for each in wrappers if any(id(param) in reached for param in each.module.parameters())]

    def _is_local(self, wrapper):
        """Return whether the wrapper has left the last backward pass unreduced."""
        if wrapper in self._watches:
            return not self._watches[wrapper][0].reduces
        return wrapper.has_local_gradients


def _average(params, group):
    """Replace the gradients of ``params`` by their averages over the ranks; one that no rank has stays None."""
    for alike in _runs(params):
        for param in alike:
            if param.grad is not None and param.grad.is_sparse:
                param.grad = param.grad.to_dense()
        has = [param.grad is not None for param in alike]
        parts = [(param.grad if there else torch.zeros_like(param)).reshape(-1) for param, there in zip(alike, has)]
        flat = torch.cat(parts + [torch.tensor(has, dtype=parts[0].dtype, device=parts[0].device)])
        options = {} if group is True else {"group": group}
        torch.distributed.all_reduce(flat, **options)
        marks = has if all(has) else flat[-len(alike) :].tolist()
        flat.div_(torch.distributed.get_world_size(**options))
        start = 0
        for param, mark in zip(alike, marks):
            mean = flat[start : start + param.numel()].view(param.shape)
            start += param.numel()
            if param.grad is not None:
                param.grad.copy_(mean)
            elif mark:
                param.grad = mean.clone()


def _runs(params):
    """Return lists of params of one dtype and device, of a bounded size each."""
    runs = []
    for alike in tensors.grouped(params):
        size = tensors.CHUNK
        for param in alike:
            if size + param.numel() > tensors.CHUNK:
                runs.append([])
                size = 0
            runs[-1].append(param)
            size += param.numel()
    return runs


def _broadcast(module, group, find_master):
    """Give every rank the masters, params and buffers of the first rank."""
    with torch.no_grad():
        for tensor in list(module.parameters()) + list(module.buffers()):
            master = find_master(tensor)
            source = tensor if master is None else master
            torch.distributed.broadcast(source, _first_rank_of(group), group=group)
            if master is not None:
                tensor.copy_(master)


def _first_rank_of(group):
    ranks = getattr(torch.distributed, "get_process_group_ranks", None)  # older torch: the group of all ranks
    return 0 if ranks is None else ranks(group)[0]
