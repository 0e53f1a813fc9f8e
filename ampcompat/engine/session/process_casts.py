"""``ProcessCasts``: the active cast backend of the process; chooses, opens and replaces it.

Registering a function replaces the backend. So other modules keep the methods of ``ProcessCasts``, not those of a
backend.
"""

import functools
import weakref

import torch

from ...support.patching import PatchStack, run_after
from ...support.torch_compat import features
from .. import casting
from ..casting import autograd, emulated_half_models, refused_calls, torch_compile
from ..casting.cast_backend import CastBackend
from ..op_table import expansion
from ..optimizers import step_or_skip
from . import missing_kernels, process_state

#: Methods that move a module. All of them call ``Module._apply``, but that is called for each submodule too.
_MOVES = ("to", "cuda", "cpu", "xpu", "ipu", "mtia", "to_empty")


class ProcessCasts:
    """No casts at first, then those of one backend at a time: that of O1 or that of O4.

    Args:
        allow_banned: functions that are unsafe in half run in float32 instead of raising.
    """

    def __init__(self, wanted, allow_banned):
        self.backend = CastBackend()
        self.choice = None
        self.is_regional = False  # whether functions are cast only within a ``region``, per thread
        self.allow_banned = self._allow_banned = allow_banned
        self._wanted = wanted
        self._patches = PatchStack()
        self._has_models = False  # that were initialized, since ``close``
        self._half_pairs = frozenset()  # the ``DtypePair`` of each level whose weights are half: O2, O3, O5
        self._half_mode = None  # the newest ``HalfMode`` of half models on a CPU
        self.dtypes_of_init = None  # the ``DtypePair`` that ``amp.init`` has asked for, until ``stop``
        self._opened_as = None  # the arguments that the active backend was made with
        self._users = []  # weak references to models and optimizers: functions are cast on the devices of their tensors
        self._first_params = []  # of each model: (weak reference to its module, its name, its device type)

    def open(self, dtypes, users=()):
        """Cast functions to these dtypes, by the op table with the users' registrations and edits.

        An active backend that was made with the same arguments is kept: other threads may be using it.

        Args:
            users: more models, on whose devices functions are cast, and optimizers: see ``_device_types``.
        """
        choice = casting.choose(features.read(), self._wanted, dtypes)
        rows = expansion.merge(expansion.rows(), process_state.lists.as_data(), process_state.registrations)
        wanted = (choice.name, dtypes, rows, self.allow_banned, self.is_regional)
        restore = self.restorer()
        self._users = [each for each in self._users if each() is not None] + list(map(weakref.ref, users))
        try:
            if wanted == self._opened_as:
                self._cast_where_models_are()
            else:
                self._replace(casting.BACKENDS[choice.name](dtypes, rows, self.allow_banned), choice, wanted)
        except BaseException:
            restore()
            raise

    def restorer(self):
        """Return a function that restores the backend and the devices of now."""
        models = self._has_models, self._half_pairs, self._half_mode
        return functools.partial(self._restore, self.backend, self.choice, self._opened_as, self._users, models)

    def _restore(self, backend, choice, opened_as, users, models):
        is_open = self.backend is backend and (self._has_models, self._half_pairs, self._half_mode) == models
        self._users, (self._has_models, self._half_pairs, self._half_mode) = users, models
        if is_open:
            self._cast_where_models_are()
        else:
            self._replace(backend, choice, opened_as)

    def reopen(self):
        """Replace the backend, if one is open, by one with the current op table."""
        if self.choice is not None:
            self.open(self.backend.dtypes)

    def stop(self):
        """Stop casting functions, until ``open``."""
        self.allow_banned, self.dtypes_of_init = self._allow_banned, None
        self._replace(CastBackend(), None)

    def close(self):
        """Stop casting functions and emulating half arithmetic."""
        self._has_models, self._half_pairs, self._half_mode, self._users = False, frozenset(), None, []
        self.stop()
        emulated_half_models.leave()

    def _replace(self, backend, choice, opened_as=None):
        self.backend, self.choice, self._opened_as = CastBackend(), None, None
        self._patches.undo()
        try:
            self._open(backend, choice, opened_as)
        except BaseException as error:
            run_after(error, self._patches.undo)
            raise
        self.backend, self.choice, self._opened_as = backend, choice, opened_as

    def _open(self, backend, choice, opened_as):
        device_types, patches = self._device_types(), self._patches
        cast_pairs = () if opened_as is None else (opened_as[1],)
        if "cpu" in (device_types or ("cpu",)):
            for dtypes in cast_pairs:
                missing_kernels.explain_calls(dtypes.low, patches)
        # Before the backend, whose casts come first.
        if choice is not None or self._half_pairs:
            refused_calls.accept(self._half_pairs, cast_pairs, patches)
        backend.set_devices(device_types)
        backend.open(patches, self.is_regional)
        if choice is not None:
            _watch_moves(self._cast_where_models_are, patches)
        if self._has_models or opened_as is not None:
            step_or_skip.keep_from_compiler(patches)
        if self._half_mode is not None:
            autograd.checkpoint_under_same_casts(emulated_half_models, patches)
            emulated_half_models.keep_from_compiler(patches)

    def _cast_where_models_are(self):
        self.backend.set_devices(self._device_types())

    def _has_moved(self):
        """Return whether a model was moved param by param, by its first one."""
        for reference, name, device_type in self._first_params:
            params = getattr(reference(), "_parameters", {})
            param = params[name] if name in params else None  # those of a TorchScript module have no ``get``
            if param is not None and param.device.type != device_type:
                return True
        return False

    def _device_types(self):
        """Return the device types of the models' params, else of buffers, else of the optimizers' params, or None."""
        users = [each for each in [reference() for reference in self._users] if each is not None]
        models = [each for each in users if isinstance(each, torch.nn.Module)]
        self._first_params = [found for found in map(_first_param, models) if found is not None]
        groups = [group for each in users if not isinstance(each, torch.nn.Module) for group in each.param_groups]
        for tensors in (
            [param for model in models for param in model.parameters()],
            [buffer for model in models for buffer in model.buffers()],
            [param for group in groups for param in group["params"]],
        ):
            if tensors:
                return {tensor.device.type for tensor in tensors}
        return None

    def paused(self):
        """Return a context manager with casts off in this thread."""
        return self.backend.paused()

    def region(self):
        """Return a context manager with casts on in this thread, or with emulated half where a CPU needs it."""
        mode = emulated_half_models.context_of(self._half_mode)
        return self.backend.region() if mode is None else mode

    def context_of_forward(self):
        """Return the context of ``forward`` in this thread; None if it needs none, which compilers can trace."""
        if not torch_compile.is_tracing() and self._has_moved():
            self._cast_where_models_are()
        return self.backend.entered()

    def contexts_of_forward(self, policy, models):
        """Return what ``forward`` runs in at a level.

        Returns:
            Two functions (or None) that return contexts, of modules kept in float32 and of whole models; and the
            ``HalfMode`` of whole models, or None.
        """
        if policy.patch_torch_functions:
            kept, whole, mode = self.paused, self.context_of_forward, None
        else:
            kept, whole = None, self.context_of_uncast_forward
            mode = emulated_half_models.choose(policy.dtypes, models) if policy.casts_model else None
        with self.paused():  # kernels are tried out
            return kept, missing_kernels.explained(whole, policy.cast_model_type or policy.dtypes.low), mode

    def context_of_uncast_forward(self):
        """Return the context of ``forward`` at a level that casts no functions, although another model's may."""
        return None if self.choice is None else self.backend.uncast_forward()

    def add_models(self, half_pair, mode):
        """Patch what initialized models need, whatever their level.

        Args:
            half_pair: the ``DtypePair`` of their level if their weights are half, or None.
            mode: a ``HalfMode`` (or None), which ``region`` uses too, and in which gradient checkpointing recomputes.
        """
        before = self._has_models or self._opened_as is not None, self._half_pairs, self._half_mode is not None
        self._has_models, self._half_mode = True, mode or self._half_mode
        self._half_pairs = self._half_pairs | ({half_pair} - {None})
        if before != (True, self._half_pairs, self._half_mode is not None):
            # opened again, so that all patches are undone in reverse order
            self._replace(self.backend, self.choice, self._opened_as)


def _first_param(model):
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None:
                return weakref.ref(module), name, param.device.type
    return None


def _watch_moves(on_move, patches):
    """Call ``on_move()`` after every call of a method that moves a module, those of other packages' devices too."""

    def moving(original, *args, **kwargs):
        result = original(*args, **kwargs)
        on_move()
        return result

    for name in dict.fromkeys(_MOVES + features.available_devices()):
        if name in vars(torch.nn.Module):
            patches.wrap(torch.nn.Module, name, moving)
