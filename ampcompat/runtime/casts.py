"""The cast backend that is in force in this process, if one is.

Owns: ``ProcessCasts``: the choice of a backend, its opening, its replacement by another.
Must not touch: what a backend does.
The surprise: registering a function opens the backend anew under the longer table. What holds ``entered`` or ``paused`` of this object
follows; what held a backend's own would not.
"""

from .. import backends
from ..backends import autograd, half_mode
from ..backends.base import NoCasts
from ..backends.switch import NOTHING
from ..parts.patching import PatchStack
from ..tables import op_rules, torch_facts
from . import state


class ProcessCasts:
    """No casts at first; then those of one backend at a time.

    Args:
        wanted: "auto", "native" or "patched".
        allow_banned: functions that are unsafe in half run in float32 instead of raising.
    """

    def __init__(self, wanted, allow_banned):
        self.backend = NoCasts()
        self.choice = None
        self.is_regional = False  # whether functions are cast only where a thread stands in a ``region``
        self._wanted = wanted
        self._allow_banned = allow_banned
        self._patches = PatchStack()
        self._half_mode = None
        self._recomputes_alike = False

    def open(self, dtypes):
        """Cast functions to these dtypes, under the op table with everything that users registered or edited.

        Returns:
            A function that puts back what was in force before.
        """
        choice = backends.choose(torch_facts.read(), self._wanted, dtypes)
        lists = state.lists.as_data()
        rows = op_rules.merge(op_rules.rows(), lists, state.registrations)
        messages = op_rules.banned_messages(lists)
        before = (self.backend, self.choice)
        try:
            self._replace(choice.backend_class(dtypes, rows, self._allow_banned, messages), choice)
        except BaseException:
            self._replace(*before)
            raise
        return lambda: self._replace(*before)

    def reopen(self):
        """Open the backend anew, if one is open, under the table as it is by now."""
        if self.choice is not None:
            self.open(self.backend.dtypes)

    def close(self):
        """Cast nothing any more."""
        self._half_mode, self._recomputes_alike = None, False
        self._replace(NoCasts(), None)

    def _replace(self, backend, choice):
        self._patches.undo()
        self.backend, self.choice = NoCasts(), None
        with PatchStack() as patches:
            if self.is_regional:
                backend.confine()
            backend.open(patches)
            if self._recomputes_alike:
                autograd.recompute_alike(half_mode, patches)
            self._patches.absorb(patches)
        self.backend, self.choice = backend, choice

    def paused(self):
        """Return a context manager with casts off in this thread."""
        return self.backend.paused()

    def region(self):
        """Return a context manager with casts on in this thread, products of half tensors on a slow CPU among them."""
        mode = None if self._half_mode is None else self._half_mode.context()
        return self.backend.region() if mode is None else mode

    def context_of_forward(self):
        """Return what ``forward`` must enter in this thread: None where that is nothing, which compilers can follow."""
        context = self.backend.entered()
        return None if context is NOTHING else context

    def contexts_of_forward(self, policy, models):
        """Return two functions, or None for either: the contexts of modules kept in float32, and of whole models."""
        if policy.patch_torch_functions:
            return self.paused, self.context_of_forward
        if not policy.casts_model:
            return None, None
        mode = half_mode.choose(policy.dtypes, models)
        self._half_mode = mode or self._half_mode
        return None, mode and mode.context

    def settle_in(self):
        """Let checkpoints recompute as they computed, now that nothing can fail any more."""
        if self._half_mode is not None and not self._recomputes_alike:
            self._recomputes_alike = True
            self._replace(self.backend, self.choice)  # anew, so that all patches come off in the order they went on

    def stepping(self):
        """Return the context of an optimizer's step: no casts in it, and every cast of a weight forgotten after it."""
        return _Stepping(self.backend)

    def resumed(self, function):
        """Return ``function`` running under the casts that are in force in this thread now."""
        return self.backend.as_now(function)


class _Stepping:
    # Casts are forgotten explicitly: kernels that torch knows nothing of write weights without counting a version.

    def __init__(self, backend):
        self._backend = backend
        self._paused = backend.paused()

    def __enter__(self):
        self._paused.__enter__()

    def __exit__(self, *exc_info):
        self._backend.clear_cache()
        self._paused.__exit__(*exc_info)
