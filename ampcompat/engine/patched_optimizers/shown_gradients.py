"""What ``.grad`` of an optimizer's half params shows to the script, and what the script changes in it.

True gradients are at the float32 masters. ``.grad`` shows them rounded to half from when it is read until the next pass
or step: then the masters get the elements that the script has changed. After a step it shows the gradients of that
step.
"""

import torch

from ...support import tensor_lists
from ...support.tensor_lists import add_gradients, set_stored_gradient, stored_gradient
from .written_gradients import is_unchanged, mark_of


class ShownGradients:
    """Gradients of half params that the script has read or assigned.

    Args:
        masters: the ``OptimizerMasters``.
    """

    def __init__(self, masters):
        self._masters = masters
        self._read = {}  # id(half param) -> ReadGradient: gradients that the script may have changed
        self._not_moved = {}  # id(half param) -> (half param, master) whose half gradient was read before it moves
        self._stepped = ()  # (half params, float32 gradients) of the last step, until the next pass

    def show(self, model, master, is_left_alone):
        """Return what ``.grad`` of a half param shows: the gradient of its master, rounded, or what is stored there.

        It becomes the param's ``.grad``, and what the script changes in it is taken over by ``take_changes``.

        Args:
            model, master: the half param and its master.
            is_left_alone: whether a gradient that is stored in ``.grad`` is not to be added to that of the master.
        """
        stored = stored_gradient(model)
        if is_left_alone or id(model) in self._read:
            return stored
        if stored_gradient(master) is None:
            if stored is not None:
                self._not_moved[id(model)] = model, master
            elif self._stepped:
                set_stored_gradient(model, rounded(self._gradients_of_step().get(id(model)), model))
            return stored_gradient(model)
        if stored is not None:  # of a plain pass since
            with torch.no_grad():
                add_gradients([master], [widened(stored, master)])
        set_stored_gradient(model, rounded(stored_gradient(master), model))
        self._note_read(model, master)
        return stored_gradient(model)

    def was_set(self, model, master, is_left_alone):
        """Note that the script has assigned to ``.grad`` of a half param. Arguments: see ``show``."""
        if self._stepped:
            self._gradients_of_step().pop(id(model), None)
        if stored_gradient(master) is not None and not is_left_alone and id(model) not in self._read:
            self._read[id(model)] = ReadGradient(model, master)

    def take_changes(self):
        """Give the masters what the script has changed in ``.grad`` of half params, and empty that.

        Elements that the script has left alone keep the exact float32 gradient.
        """
        if self._read:
            read, self._read = self._read, {}
            with torch.no_grad():
                for each in read.values():
                    each.take()

    def move(self, move_gradients, stays_shown):
        """Move half gradients to their masters with a function; ``stays_shown``: ``.grad`` keeps what was read."""
        not_moved, self._not_moved = [(pair, stored_gradient(pair[0])) for pair in self._not_moved.values()], {}
        with torch.no_grad():
            move_gradients()
        for (model, master), gradient in not_moved if stays_shown else ():  # the script may change what it has read
            if gradient is not None:
                set_stored_gradient(model, gradient)
                self._note_read(model, master)

    def keep_through(self, move_gradients):
        """Call a function that moves half gradients to their masters; what the script has read is not one of them."""
        read = [(each.model, stored_gradient(each.model)) for each in self._read.values()]
        for model, _ in read:
            set_stored_gradient(model, None)
        move_gradients()
        for model, gradient in read:
            set_stored_gradient(model, gradient)

    def begin_pass(self):
        """Take the script's changes, and forget the gradients of the last step."""
        self.take_changes()
        self._stepped, self._not_moved = (), {}

    def finish_step(self, gradients):
        """Show the gradients of a step until the next pass: pairs of a list of half params and one of gradients."""
        self._stepped = gradients

    def clear(self):
        """Forget all gradients."""
        self._read, self._not_moved, self._stepped = {}, {}, ()

    def _note_read(self, model, master):
        self._read[id(model)] = ReadGradient(model, master, self._masters.writes)

    def _gradients_of_step(self):
        if not isinstance(self._stepped, dict):
            self._stepped = {id(each): grad for pairs in self._stepped for each, grad in zip(*pairs)}
        return self._stepped


class ReadGradient:
    """The gradient of a half param that the script has read or assigned.

    Args:
        model, master: the half param and its master.
        writes: a ``WrittenMemory``; None if the script has assigned the gradient. Otherwise ``.grad`` of the half param
            was made of the master's.
    """

    __slots__ = ("model", "_master", "_writes", "_shown", "_mark")

    def __init__(self, model, master, writes=None):
        self.model, self._master, self._writes = model, master, writes
        if writes is not None:
            self._shown = stored_gradient(model)  # old torch makes a new object of ``.grad`` when nobody holds one
            self._mark = mark_of(self._shown)
            writes.watch([self._shown])

    def take(self):
        """Give the master the elements that the script has changed; empty ``.grad`` of the half param."""
        master, now = self._master, stored_gradient(self.model)
        exact = stored_gradient(master)
        set_stored_gradient(self.model, None)
        if now is None or exact is None or self._writes is None:
            set_stored_gradient(master, None if now is None else widened(now, master))
        elif not is_unchanged(self._mark, mark_of(now)) or self._shown in self._writes:
            self._take_changed(now, rounded(exact, now))

    def _take_changed(self, now, shown):
        master = self._master
        if now.is_sparse or shown.is_sparse:
            if not torch.equal(now.to_dense(), shown.to_dense()):
                set_stored_gradient(master, widened(now, master))
        else:
            wide = widened(now, master)
            is_changed = wide != shown.to(master.dtype)  # old torch compares no halves on a CPU
            exact = stored_gradient(master)
            exact.copy_(torch.where(is_changed, wide, exact))


def widened(gradient, master):
    """Return a gradient in its master's dtype, on the master's device, coalesced."""
    return tensor_lists.coalesced(gradient).to(device=master.device, dtype=master.dtype)


def rounded(gradient, model):
    """Return a gradient in its half param's dtype, on the param's device; None for none."""
    return None if gradient is None else gradient.detach().to(device=model.device, dtype=model.dtype)
