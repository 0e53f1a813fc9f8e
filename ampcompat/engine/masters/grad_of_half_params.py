"""What ``.grad`` of half params shows to the script, and what the script changes in it.

True gradients are at the float32 masters. ``.grad`` shows them rounded to half, in a tensor that is made when ``.grad``
is first read (``GradientsOnRead``), so that a script that does not read it needs no memory for it, and that stays the
same until the gradients are cleared, whichever optimizers have the param meanwhile. Nobody is told when a script writes
to it, so its values are compared with a copy: at the beginning of a pass, at a step, and where the script reads the
masters' gradients. The masters get the elements that differ, and the tensor gets what the masters have then.
"""

import weakref

import torch

from ...support import tensor_lists
from ...support.tensor_lists import GRADIENT, add_gradients, set_stored_gradient, stored_gradient
from ...support.torch_compat import features
from ...support.torch_compat.thread_blocks import grad_enabled
from ..loss_scaling.loss_scaler import is_one, is_same


class GradientsOnRead:
    """Replaces ``grad`` of ``torch.nn.Parameter`` by a property.

    Masters are plain tensors, so reading theirs does not become slower; but each whose half param's gradient the script
    has read is a ``Parameter`` until its changes are taken, and reading its gradient takes them.

    Args:
        entries: a dict whose keys are the ids of half params.
        models: a dict: id(master) -> id(half param).
        entry_of: called with a param; returns its ``MasterEntry``, or None.
        shown: the session's ``ShownGradients``.
    """

    def __init__(self, entries, models, entry_of, shown):
        self._entries, self._models, self._entry_of, self._shown = entries, models, entry_of, shown
        self._is_open = False

    def open(self, patches):
        """Replace the property, once; undone by ``patches``."""
        if not self._is_open:
            patches.defer(self._close)
            self._is_open = True
            patches.set(torch.nn.Parameter, "grad", property(self._get, self._set, self._delete, GRADIENT.__doc__))

    def _close(self):
        self._is_open = False

    def _holder(self, param):
        """Return the ``HeldGradients`` of a half param and its master; (None, None) for any other param.

        If its optimizers are gone, its gradient is no longer a master's, but its own.
        """
        entry = self._entry_of(param)
        records = [] if entry is None else entry.living_records()
        for record in records:
            if record.configuration.shows_half_gradients:
                return record.gradients, entry.master
        if entry is not None and not records:
            self._shown.leave(param, entry.master)
        return None, None

    def _get(self, param):
        if id(param) in self._entries:
            holder, master = self._holder(param)
            if holder is not None:
                return holder.shown(param, master)
        elif id(param) in self._models:
            self._take_changes_for(param)
        return stored_gradient(param)

    def _take_changes_for(self, master):
        key = self._models[id(master)]
        if key in self._shown:
            self._shown.take_changes_of(self._entries[key].model())
        else:
            unwatch(master)

    def _set(self, param, gradient):
        holder, master = self._holder(param) if id(param) in self._entries else (None, None)
        if id(param) in self._models:
            self._take_changes_for(param)
        before = stored_gradient(param)
        set_stored_gradient(param, gradient)
        if holder is not None:
            holder.was_set(param, master, before)

    def _delete(self, param):
        self._set(param, None)


class ShownGradients(dict):
    """Gradients of half params that the script has read or assigned: id(half param) -> ``ShownGradient``.

    ``pairs`` are (half param, master) pairs of one optimizer.
    """

    def of(self, pairs):
        """Return (half param, ``ShownGradient``) for those of the pairs that the script has read."""
        return [(model, self[id(model)]) for model, _ in pairs if id(model) in self]

    def show(self, model, master, scale):
        """Return what ``.grad`` of a half param shows: the gradient of its master, rounded, or what is stored there.

        Only one of them may have a gradient. That of the master is multiplied by ``scale``, that of a block.
        """
        stored, shown = stored_gradient(model), self.get(id(model))
        if shown is not None and stored is None:
            shown.follow_writes(model, scale)
            watch(master)
            return shown.gradient
        wide = stored_gradient(master)
        if wide is None:
            if stored is not None:
                self[id(model)] = ShownGradient(master, stored, None)
            return stored
        with grad_enabled(False):
            gradient = rounded(wide, model, scale)
        self[id(model)] = ShownGradient(master, gradient, gradient.clone(), scale)
        return gradient

    def was_set(self, model, master, before, stays):
        """Note that a script has assigned to ``.grad`` of a half param.

        Where it has assigned the values that were shown, the master keeps its exact gradient.

        Args:
            before: the gradient that was stored in ``.grad``, or None.
            stays: the assigned gradient stays there, and nothing else is left.
        """
        shown, gradient = self.pop(id(model), None), stored_gradient(model)
        wide = stored_gradient(master)
        if gradient is None or stays:
            set_stored_gradient(master, None)
            return
        set_stored_gradient(model, None)
        with grad_enabled(False):
            if wide is None or before is not None:
                set_stored_gradient(master, widened(gradient, master).detach())
                copy = gradient.detach().clone()
            else:
                copy = rounded(wide, model) if shown is None else shown.copy
        self[id(model)] = ShownGradient(master, gradient, copy)

    def take_changes(self, pairs):
        """Give the masters what the script has changed in what it has read.

        Return the gradients of those that it has read within a block: it may have added scaled ones, to be checked.
        """
        scaled = [shown.master for _, shown in self.of(pairs) if not is_one(shown.scale)]
        with grad_enabled(False):
            for _, shown in self.of(pairs):
                shown.take_changes()
                unwatch(shown.master)
        self.follow(pairs)
        return [gradient for gradient in map(stored_gradient, scaled) if gradient is not None]

    def take_changes_of(self, model):
        """Give the master of a half param what the script has changed, and show what it has then."""
        shown = self.get(id(model))
        if shown is not None:
            with grad_enabled(False):
                shown.take_changes()
                shown.follow(model, shown.scale)

    def watch(self, pairs):
        """Let reading the gradients of masters take the changes, again: they have become plain tensors."""
        for _, shown in self.of(pairs):
            watch(shown.master)

    def follow(self, pairs):
        """Show what the masters have now, in the tensors that the script has read."""
        with grad_enabled(False):
            for model, shown in self.of(pairs):
                shown.follow(model, 1.0)
                if shown.gradient is None:
                    del self[id(model)]

    def leave(self, model, master):
        """Make what ``.grad`` shows the gradient of the half param itself, whose optimizers are gone."""
        shown = self.pop(id(model), None)
        if shown is None and stored_gradient(master) is None:
            return
        with grad_enabled(False):
            if shown is not None:
                shown.take_changes()
            wide = stored_gradient(master)
            if wide is not None:
                gradient = rounded(wide, model)
                if shown is not None and stored_gradient(model) is None:
                    shown.show(gradient)
                    gradient = shown.gradient
                set_stored_gradient(master, None)
                add_gradients([model], [gradient])


class ShownGradient:
    """One tensor that ``.grad`` of a half param shows.

    Args:
        master: the master of the half param, which must not be kept alive.
        gradient: the tensor.
        copy: its values when it was shown; None while it is the gradient that is stored in ``.grad``.
        scale: what it is multiplied by: a float, or a tensor of shape ().
    """

    __slots__ = ("master", "gradient", "copy", "scale", "_mark")

    def __init__(self, master, gradient, copy, scale=1.0):
        self.master, self.gradient, self.copy, self.scale = master, gradient, copy, scale
        self._mark = mark_of(stored_gradient(master))  # of the gradient that is shown
        watch(master)

    def _changes(self):
        """Return (which elements the script has changed, the gradient in the master's dtype), or None.

        Where a script has set all elements to 0, those that were rounded to 0 before are changed too.
        """
        if self.copy is None:
            return None
        now, before = self.gradient, self.copy
        if now.is_sparse or before.is_sparse:
            is_changed = not torch.equal(now.to_dense(), before.to_dense())
            return (None, self._unscaled(widened(now, self.master))) if is_changed else None
        wide = widened(now, self.master)
        is_changed = wide != widened(before, self.master)  # old torch compares no halves on a CPU
        is_cleared = is_changed.any() & ~(wide != 0).any()
        return is_changed | is_cleared, self._unscaled(wide)

    def _unscaled(self, wide):
        return wide if is_one(self.scale) else wide / on_device_of(wide, self.scale)

    def take_changes(self):
        """Give the master what the script has changed."""
        changes, exact = self._changes(), stored_gradient(self.master)
        if changes is None:
            return
        is_changed, wide = changes
        if exact is None and self._mark is not None and is_changed is not None and not is_changed.any():
            return  # a script has removed it from the master
        if exact is None or is_changed is None or exact.is_sparse:
            set_stored_gradient(self.master, wide)
        else:
            exact.copy_(torch.where(is_changed, wide, exact))

    def follow(self, model, scale):
        """Show the gradient that the master has now, unless the gradient is still stored in ``.grad``."""
        self.scale, wide = scale, stored_gradient(self.master)
        if stored_gradient(model) is None:
            if wide is None:
                self.gradient = self.copy = None
            else:
                self.show(rounded(wide, model, scale))
        elif self.copy is not None:
            self.copy = self.gradient.clone()
        self._mark = mark_of(wide)

    def follow_writes(self, model, scale):
        """Show what a script has done to the master's gradient, which ``amp.master_params`` gives it: clipped, say."""
        if not (is_same(scale, self.scale) and is_unchanged(self._mark, mark_of(stored_gradient(self.master)))):
            with grad_enabled(False):
                self.take_changes()
                self.follow(model, scale)

    def show(self, values):
        """Make these the values of the tensor."""
        if values.is_sparse or self.gradient.is_sparse or self.gradient.shape != values.shape:
            self.gradient = values
        else:
            self.gradient.detach().copy_(values)
        self.copy = values.clone() if values is self.gradient else values


def watch(master):
    """Make a master a ``Parameter``, so that reading its gradient takes the script's changes (``GradientsOnRead``)."""
    if type(master) is torch.Tensor:
        master.__class__ = torch.nn.Parameter


def unwatch(master):
    """Make a master a plain tensor again."""
    if type(master) is torch.nn.Parameter:
        master.__class__ = torch.Tensor


def widened(gradient, master):
    """Return a gradient in its master's dtype, on the master's device, coalesced."""
    return tensor_lists.coalesced(gradient).to(device=master.device, dtype=master.dtype)


def rounded(gradient, model, scale=1.0):
    """Return a gradient, multiplied by ``scale``, in its half param's dtype, on the param's device."""
    wide = gradient.detach() if is_one(scale) else gradient.detach() * on_device_of(gradient, scale)
    return wide.to(device=model.device, dtype=model.dtype)


def on_device_of(tensor, scale):
    """Return a scale, a float or a tensor of shape (), for products with a tensor."""
    return scale.to(tensor.device) if isinstance(scale, torch.Tensor) else scale


def mark_of(grad):
    """Return what distinguishes a gradient from a later one; None if there is none.

    Where torch makes a new object of a gradient at every read it is told by its address.
    """
    if grad is None:
        return None
    kept = weakref.ref(grad) if features.keeps_gradient_objects() or grad.is_sparse else grad.data_ptr()
    return kept, grad._version


def is_unchanged(mark, other):
    """Return whether two marks are of one gradient that was not written to between them."""
    if mark is None or other is None:
        return mark is other
    return not _is_other_tensor(mark, other) and mark[1] == other[1]


def _is_other_tensor(mark, other):
    # Weak references to one object are one object; ``==`` would compare the tensors.
    return mark[0] is not other[0] and not (isinstance(mark[0], int) and mark[0] == other[0])


def are_cleared(marks, now):
    """Return whether each marked gradient is gone or was written to since, as ``zero_grad`` does in place."""
    return all([mark is None or later is None or mark[1] != later[1] for mark, later in zip(marks, now)])


def are_replaced(marks, now):
    """Return whether each marked gradient is another tensor now, as after ``model.zero_grad()``."""
    return all([mark is None or later is None or _is_other_tensor(mark, later) for mark, later in zip(marks, now)])
