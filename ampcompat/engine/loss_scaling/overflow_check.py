"""Overflow checks, and the optimizer steps that are skipped because of them.

Five objects take part, in this order:

    OverflowFlags     a flag per device, set while gradients are unscaled (``loss_scaler``)
    OverflowCheck     the flags of one check, all-reduced over ranks; the host reads them at most once
    LossScaler        lowers the scale (``loss_scaler``)
    StepSkips         the checks that decide whether an optimizer's next step is skipped
    OptimizerRecord   ``step_skipped``: the printed message and the observers (``optimizers.optimizer_record``)
"""

import functools

import torch

from ...errors import AmpError, AmpTypeError
from ...support.patching import run_all
from ...support.tensor_lists import is_shard
from ...support.torch_compat import fake_tensors
from ...support.torch_compat.thread_context import in_process_group

#: After so many unread checks the host reads them all. This bounds memory, at one synchronization per 100 steps.
MAX_UNREAD_CHECKS = 100


#: The attribute that says that an optimizer accepts ``found_inf`` and skips on the device: torch's fused ones.
TAKES_FOUND_INF = "_step_supports_amp_scaling"


class OverflowCheck:
    """The result of one overflow check, on the device until it is read.

    Args:
        scaler: the ``LossScaler`` that it is of.
        flags: float32 tensors of shape (), not 0 after an overflow; none where overflows are not looked for.
    """

    def __init__(self, scaler, flags):
        self.scaler = scaler
        self.flags = flags
        self.result = None if flags else False  # None until it is read
        self.callbacks = []  # called without arguments once the scale is updated after this overflow, if it is one

    def overflowed(self):
        """Return whether there was an overflow, as a bool. The first call synchronizes with the device.

        Fake flags, of a step in a ``FakeTensorMode``, have no values: nothing overflows there.
        """
        if self.result is None:
            is_one_set = False
            for flag in self.flags:
                if not fake_tensors.is_fake_type(type(flag)) and flag.item() != 0.0:
                    is_one_set = True
            self.result = is_one_set
        return self.result

    def run_callbacks(self):
        """Call the callbacks, once: all of them, even if one raises; then raise the first error."""
        callbacks, self.callbacks = self.callbacks, []
        run_all((callback, ()) for callback in callbacks)


def check_overflow(scaler, loss_id, records, groups=()):
    """Check what one or several backward passes of a loss left, and skip the next steps of the optimizers accordingly.

    Args:
        records: of the optimizers whose params the last pass reached. Records of deferred checks are added.
        groups: process groups whose ranks skip the same steps, besides those over which params are split.
    """
    records = _with_deferred(scaler, records)
    on_device, groups = True, list(groups)
    for record in records:
        on_device = on_device and getattr(record.optimizer, TAKES_FOUND_INF, False)
        for group in record.process_groups:
            if group not in groups:
                groups.append(group)
    if scaler.is_replaced("update_scale"):
        check = scaler.update_by_client()
    else:
        check = scaler.check_overflow(on_device, groups if scaler.checks_overflow else ())
    for record in records:
        record.skips.deferred.pop(scaler, None)
        if scaler.checks_overflow or check.result:
            record.skips.add(check, loss_id)
    if check.result:  # only a client's ``update_scale`` reads the result at once
        check.run_callbacks()
    return check


def defer_check(scaler, loss_id, records):
    """Leave the check to a later backward pass of this loss, or to the step if no pass comes before it."""
    records = _with_deferred(scaler, records)
    for record in records:
        record.skips.deferred[scaler] = loss_id, records


def _with_deferred(scaler, records):
    found = list(records)
    for record in records:
        if scaler in record.skips.deferred:
            _, earlier = record.skips.deferred[scaler]
            found += [each for each in earlier if each not in found]
    return found


class StepSkips:
    """The overflow checks of the gradients that an optimizer steps on next.

    Args:
        on_skip: ``on_skip(loss_id, scaler)`` is called for every step that is skipped.
    """

    def __init__(self, optimizer, on_skip):
        self._optimizer = optimizer
        self._on_skip = on_skip
        self._next = []  # each ``OverflowCheck`` for the next step
        self._last = []  # those that the last step used
        self._are_cleared = True  # its gradients, as far as ``gradients_cleared`` was called
        self.deferred = {}  # scaler -> (loss_id, records): see ``defer_check``

    def add(self, check, loss_id):
        """Skip the next step if ``check`` is an overflow."""
        check.callbacks.append(functools.partial(self._on_skip, loss_id, check.scaler))
        if len(self._next) >= MAX_UNREAD_CHECKS:  # many passes without a step: keep the overflows only
            self._next = [waiting for waiting in self._next if waiting.overflowed()]
        self._next.append(check)

    def gradients_cleared(self):
        """Forget the checks of the next step: the gradients that they are of were cleared. The scale still follows."""
        self._next, self._are_cleared = [], True

    def are_stale(self):
        """Return whether the last step was skipped, and its gradients were not cleared since. Synchronizes."""
        return not self._are_cleared and self.was_last_skipped()

    def skip_until_cleared(self):
        """Skip the next step as the last one, unless ``gradients_cleared`` comes before it."""
        self._next += self._last

    def has_checks(self):
        """Return whether there are checks of the next step or of the last one."""
        return bool(self._next or self._last or self.deferred)

    def is_next_skipped(self):
        """Return whether the next step will be skipped. Synchronizes with the device."""
        return any(check.overflowed() for check in self._next)

    def take_found_inf(self):
        """Return the unread ``found_inf`` tensor for the step that begins now; None if ``take`` must be called."""
        if self.deferred:
            self._check_deferred()
        if not self._next or not getattr(self._optimizer, TAKES_FOUND_INF, False) or self._would_make_momentum():
            return None
        flags = [flag for check in self._next for flag in check.flags]
        if not all([len(check.flags) == 1 for check in self._next]) or len({flag.device for flag in flags}) > 1:
            return None
        self._next, self._last, self._are_cleared = [], self._next, False
        return flags[0] if len(flags) == 1 else torch.stack(flags).max()

    def _would_make_momentum(self):
        """Return whether the step makes momentum buffers as torch's fused SGD does.

        A step that it skips on the device leaves them as they are allocated, with any values. So the host decides.
        """
        optimizer = self._optimizer
        groups = [group for group in optimizer.param_groups if group.get("fused") and group.get("momentum")]
        params = [param for group in groups for param in group["params"] if param.grad is not None]
        return any([optimizer.state.get(param, {}).get("momentum_buffer") is None for param in params])

    def take(self):
        """Return whether to skip the step that begins now, and update the scalers. Synchronizes with the device."""
        if self.deferred:
            self._check_deferred()
        self._next, self._last, self._are_cleared = [], self._next, False
        for check in self._last:
            check.scaler.sync()
        return self.was_last_skipped()

    def was_last_skipped(self):
        """Return whether the last step was skipped. Synchronizes with the device."""
        for check in self._last:
            if check.overflowed():
                return True
        return False

    def _check_deferred(self):
        for scaler, (loss_id, records) in list(self.deferred.items()):
            if scaler in self.deferred:
                check_overflow(scaler, loss_id, records)

    def continue_from(self, original):
        """Skip the steps of a copied optimizer by the checks of the original one."""
        self._next, self._last = list(original._next), list(original._last)


def checked_group(group):
    """Return ``group`` if flags can be reduced over it: True (all ranks), a process group, or None for none.

    Raises:
        AmpTypeError: it is neither.
        AmpError: torch.distributed has not been initialized.
    """
    if group is None or group is False:
        return None
    if isinstance(group, (str, int, float, list, tuple)) and group is not True:
        raise AmpTypeError(
            f"process_group must be True (all ranks), a torch.distributed process group or None, not {group!r}."
        )
    if not in_process_group():
        raise AmpError("process_group needs torch.distributed.init_process_group(...) before amp.initialize.")
    return group


def groups_of(tensors):
    """Return the process groups over which the DTensors among ``tensors`` are split, each once."""
    groups = []
    for tensor in [tensor for tensor in tensors if is_shard(tensor)]:
        for dimension, placement in enumerate(tensor.placements):
            group = None if placement.is_replicate() else tensor.device_mesh.get_group(dimension)
            if group is not None and group not in groups:
                groups.append(group)
    return groups


def all_reduced(flags, *groups):
    """Return ``[flag]``, which is 1 on every rank of the groups if a flag of any of them was 1.

    Args:
        flags: float32 tensors of shape (), any number, on any devices. The number may differ between ranks.
        groups: what ``checked_group`` and ``groups_of`` returned; None leaves ``flags`` as they are.
    """
    for group in [True] if True in groups else groups:
        if group is not None:
            flags = [_max_over_ranks(flags, group)]
    return flags


def _max_over_ranks(flags, group):
    device = flags[0].device if flags else _home(group)
    flag = torch.zeros((), dtype=torch.float32, device=device)
    for each in flags:
        flag = torch.max(flag, each.to(device))
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX, **group_option(group))
    return flag


def group_option(group):
    """Return the keyword ``group`` of functions of torch.distributed as a dict; empty for True, all ranks."""
    return {} if group is True else {"group": group}


def compared(number, group=True):
    """All-gather one integer per rank; return them as a list, by rank within the group.

    Args:
        group: a process group that reduces on the CPU, or True for all ranks.
    """
    mine = torch.tensor([number], dtype=torch.int64, device="cpu")
    theirs = [torch.zeros_like(mine) for _ in range(torch.distributed.get_world_size(**group_option(group)))]
    torch.distributed.all_gather(theirs, mine, **group_option(group))
    return [int(each) for each in theirs]


def _home(group):
    """Return a device on which the backend of ``group`` can reduce."""
    named = torch.distributed.get_backend(**group_option(group))
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in str(named) else torch.device("cpu")
