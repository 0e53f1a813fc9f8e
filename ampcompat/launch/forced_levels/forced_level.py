"""``ForcedLevel``: prepares the models of a script that does not use Apex with ``amp.initialize``.

Optimizers are known from their creation on. The models of an optimizer are prepared when a module that has some of its
params is first called with gradients enabled; by then, the script has loaded its checkpoint and moved the model.
"""

import atexit
import contextlib
import functools
import sys
import weakref
from types import MethodType

import torch

from ...engine.casting.torch_compile import is_compiling
from ...engine.optimizers.optimizer_record import record_of
from ...engine.optimizers.step_or_skip import amp_step
from ...engine.session import process_state
from ...errors import AmpError
from ...observers.steps import watch_optimizers, watch_scripting
from ...support import random_state
from ...support.patching import PatchStack, run_after, wraps_method
from ...support.script_frames import script_line
from ...support.tensor_lists import have_gradients
from ...support.torch_compat import features, step_hooks
from . import refusals, trained_modules
from .binary_cross_entropy import AcceptedProbabilities
from .script_autocast import AutocastRegions
from .script_backward import BackwardPasses
from .script_grad_scaler import ScriptScalers


class ForcedLevel:
    """One opt level, forced on the models of the script until the script itself calls ``amp.initialize``.

    Args:
        level: "O0" to "O5".
        tells_if_unused: print a message at exit if the script has created optimizers and the level was not applied.
    """

    def __init__(self, level, tells_if_unused=False):
        self.level = level
        self._tells_if_unused = tells_if_unused
        self.session = None  # the ``Session`` once a model is prepared
        self.scaler = None  # the ``LossScaler`` that all optimizers share
        self.made_at = weakref.WeakKeyDictionary()  # optimizer -> "FILE:LINE" where it was created
        self.scalers = ScriptScalers(self)
        self.regions = AutocastRegions(self)
        self.passes = BackwardPasses(self)
        self._waiting = weakref.WeakSet()  # optimizers whose models are not prepared
        self._unrelated = weakref.WeakSet()  # modules without params of those
        self._wrapping = weakref.WeakKeyDictionary()  # DistributedDataParallel -> its constructor arguments
        self._builtin_hooks = weakref.WeakKeyDictionary()  # the same -> arguments of ``_register_builtin_comm_hook``
        self._patches = PatchStack()
        self._calls = PatchStack()  # while optimizers wait
        self._accepted = None  # the ``AcceptedProbabilities`` while there is a session
        self._is_preparing = self._has_optimizers = False
        self.has_passes = False  # whether there was a backward pass
        self._steps = FirstSteps(self._waiting)

    # -- begin and end -------------------------------------------------------------------------------------------------

    def begin(self):
        """Patch torch, which has been imported; if torch is too old, only note that optimizers are created."""
        process_state.before_initialize.append(self._before_initialize)
        self._patches.defer(process_state.before_initialize.remove, self._before_initialize)
        if self._tells_if_unused:
            atexit.register(self._tell_if_unused)
            self._patches.defer(atexit.unregister, self._tell_if_unused)
        watch_optimizers(self._patches, self._made)
        if is_supported():
            self._patch()

    def _patch(self):
        self._patches.redirect(torch.autograd.backward, self.passes.called)
        for method in ("half", "bfloat16", "to", "type"):
            self._patches.wrap(torch.nn.Module, method, self._cast)
        if torch.distributed.is_available():
            wrapper = torch.nn.parallel.DistributedDataParallel
            self._patches.wrap(wrapper, "__init__", self._wrapped)
            self._patches.wrap(wrapper, "_register_builtin_comm_hook", self._hooked)
        watch_scripting(self._patches, self._calls.undo, self._watch_waiting)  # the compiler reads ``forward``
        self.scalers.patch(self._patches)
        self.regions.patch(self._patches)

    def end(self):
        """Restore torch, and the models if some are prepared."""
        session, self.session = self.session, None
        self._calls.undo()
        if session is not None:
            self._accepted.end()
            session.close()
        for optimizer in list(self.made_at):
            self._steps.release(optimizer)
        self._patches.undo()

    def _before_initialize(self):
        if not self._is_preparing:
            self.end()

    def _tell_if_unused(self):
        has_refused = isinstance(getattr(sys, "last_value", None), AmpError)  # which has said more
        if self.session is not None or has_refused or not (self._has_optimizers or self.has_passes):
            return
        reason = "the script makes no torch.optim optimizer"
        if self._has_optimizers:
            reason = "no module that an optimizer trains was called with gradients enabled"
        if not is_supported():
            reason = "for scripts that do not call amp.initialize this requires torch 2.1 or newer"
        print(f"ampcompat: opt level {self.level} was not applied: {reason}.", file=sys.stderr)

    def refused(self, optimizer, reason, **words):
        """Return the error of one of the reasons in ``refusals``."""
        return refusals.refused(optimizer, self.made_at[optimizer], reason, self.level, **words)

    def rules(self):
        """Return whether the script has created an optimizer, so that the level decides what is computed in half."""
        return bool(self.made_at)

    # -- called instead of torch's functions ---------------------------------------------------------------------------

    def _made(self, optimizer):
        is_first, self._has_optimizers = not self._has_optimizers, True
        if not is_supported():
            return
        if is_first:  # not in `begin`: this imports the compiler, as torch does for an optimizer
            step_hooks.register(self._patches, self._before_step)
        self.made_at[optimizer] = "{}:{}".format(*script_line())
        self._steps.watch(optimizer)
        self._waiting.add(optimizer)
        self._unrelated.clear()
        self._watch_calls(optimizer)

    def _watch_calls(self, optimizer):
        owners = [(torch.nn.Module, "__call__")] if "__call__" in vars(torch.nn.Module) else []
        owners += [
            (each, "forward") for each in trained_modules.classes_with_params_of(optimizer)
        ]  # scripts call it directly
        for owner, name in owners:
            if not getattr(getattr(owner, name), "is_watched", False):
                self._calls.set(owner, name, self._called(getattr(owner, name)))

    def _called(self, call):
        @wraps_method(call)
        def watched(module, *args, **kwargs):
            if not is_compiling() and self._waiting and module not in self._unrelated:
                if self._before_call(module) and call.__name__ == "forward":
                    return module.forward(*args, **kwargs)  # which casts now
            return call(module, *args, **kwargs)

        watched.is_watched = True
        return watched

    def _watch_waiting(self):
        for optimizer in list(self._waiting):
            self._watch_calls(optimizer)

    def _before_call(self, module):
        """Prepare the optimizers that train a module, and return whether there were some."""
        if not torch.is_grad_enabled() or torch.jit.is_tracing() or self._is_preparing:
            return False
        params = trained_modules.params_in(module)
        optimizers = [each for each in self._waiting if not params.isdisjoint(trained_modules.trained_params([each]))]
        if not optimizers:
            self._unrelated.add(module)
            return False
        model = trained_modules.unwrapped(module)
        parts = [model] + trained_modules.holders(optimizers, model)
        self._prepare(parts, sorted(optimizers, key=list(self.made_at).index))
        for wrapper in trained_modules.wrappers(module):
            self._wrap_again(wrapper)
        self._steps.prepared()
        return True

    def _cast(self, method, module, *args, **kwargs):
        given = args + tuple(kwargs.values())
        is_half = method.__name__ in ("half", "bfloat16") or trained_modules.names_half(given)
        if is_half and trained_modules.params_in(module) & self._trained():
            raise refusals.half_by_hand(method.__name__, self.level)
        return method(module, *args, **kwargs)

    def _trained(self):
        """Return the ids of the params in the models that optimizers train."""
        known = set(trained_modules.trained_params(self._waiting))
        return known.union(id(param) for record in self.prepared() for param in record.leaf_params())

    def _wrapped(self, make, wrapper, module, *args, **kwargs):
        make(wrapper, module, *args, **kwargs)
        self._wrapping[wrapper] = args, kwargs

    def _hooked(self, register, wrapper, *args, **kwargs):
        register(wrapper, *args, **kwargs)
        self._builtin_hooks[wrapper] = args, kwargs

    def _wrap_again(self, wrapper):
        """Give a wrapper the reducer of a new one, for gradients in the current dtype of its params."""
        args, kwargs = self._wrapping[wrapper]
        del wrapper.reducer  # its hooks on the params are removed with it
        new = torch.nn.parallel.DistributedDataParallel(wrapper.module, *args, **kwargs)
        for hook, state in wrapper._comm_hooks:
            new.register_comm_hook(state, hook)
        if wrapper in self._builtin_hooks:
            args, kwargs = self._builtin_hooks[wrapper]
            new._register_builtin_comm_hook(*args, **kwargs)
        if wrapper.static_graph and not new.static_graph:
            new._set_static_graph()
        wrapper.reducer, wrapper.logger = new.reducer, new.logger
        self.session.ddp_wrappers.watch(wrapper)

    def _before_step(self, optimizer, args, kwargs):
        self._check_inner(optimizer)
        if optimizer in self._waiting and have_gradients(trained_modules.params_of(optimizer)):
            raise self.refused(optimizer, refusals.NO_MODULE)

    def _check_inner(self, optimizer):
        """Raise if an inner optimizer steps on the masters of an outer one, which would not round them."""
        record = record_of(optimizer)
        if record is None or not record.configuration.policy.master_weights or record.pairs():
            return
        params = trained_modules.trained_params([optimizer])
        for other in self.prepared():
            if any(id(pair.master) in params for pair in other.pairs()) and not other.is_running:
                raise self.refused(optimizer, refusals.INNER_STEP, outer=type(other.optimizer).__name__)

    # -- prepare -------------------------------------------------------------------------------------------------------

    def _prepare(self, parts, optimizers):
        from ... import amp  # once a model trains: no overhead for scripts that only import torch

        for optimizer in optimizers:
            params = trained_modules.params_of(optimizer)
            if any(param.dtype is torch.float64 for param in params):
                raise self.refused(optimizer, refusals.FLOAT64)
            if any(map(trained_modules.is_first_fsdp, parts)):
                raise self.refused(optimizer, refusals.FIRST_FSDP)
            if self.level != "O0" and any(hasattr(param, "grad_sample") for param in params):  # opacus
                raise self.refused(optimizer, refusals.GRADIENTS_PER_SAMPLE)
            self._steps.release(optimizer)
        self._calls.undo()  # ``amp.initialize`` replaces ``forward`` too
        self._is_preparing = True
        try:
            amp.initialize(
                parts, optimizers, opt_level=self.level, allow_half_model=True, **self.scalers.initial_options()
            )
        finally:
            self._is_preparing = False
        if self.session is None:
            self._accepted = AcceptedProbabilities(process_state.current())
            self._accepted.begin()
        self.session = process_state.current()
        configuration = self.session.configuration_of(optimizers)
        if self.scaler is None:
            self.scaler = configuration.scalers[0]
            self.scalers.prepared()
        else:
            configuration.scalers = [self.scaler]
        for optimizer in optimizers:
            self._waiting.discard(optimizer)
        self._watch_waiting()

    def prepare_tensors(self, optimizer):
        """Prepare an optimizer of tensors that are in no module, if models are prepared; return whether it is one."""
        if self.session is None or trained_modules.are_in_modules(optimizer):
            return False
        self._prepare([], [optimizer])
        self._steps.prepared()
        return True

    def prepared(self):
        """Return the records of the optimizers whose models are prepared, in order of creation."""
        found = [record_of(each) for each in list(self.made_at)]
        return [record for record in found if record is not None]

    def owner_that_waits(self, leaves):
        """Return an optimizer that trains one of these tensors and whose models are not prepared, or None."""
        owners = trained_modules.trained_params(self._waiting) if self._waiting else {}
        return next((owners[key] for key in leaves if key in owners), None)


def is_supported():
    """Return whether levels can be forced with this torch: 2.1 has global optimizer hooks and hooks on gradients."""
    return features.is_version_within(oldest="2.1")


@contextlib.contextmanager
def forced(level):
    """Return a context manager that forces an opt level on scripts without Apex; None forces nothing.

    Yields:
        The ``ForcedLevel``, or None.
    """
    if level is None:
        yield None
        return
    level = ForcedLevel(level)
    level.begin()
    try:
        yield level
    except BaseException as error:
        run_after(error, level.end)
        raise
    level.end()


class _Prepared(BaseException):
    """Raised in a closure when its model is prepared; handlers of the script do not catch it."""


class FirstSteps:
    """Runs the closure of a first step up to the call of the model, which prepares it; then the step starts over.

    Args:
        waiting: the optimizers whose models are not prepared, a set that changes.
    """

    def __init__(self, waiting):
        self._waiting = waiting
        self._is_trying = False

    def watch(self, optimizer):
        """Replace ``optimizer.step`` until ``release``."""
        step = optimizer.step
        if not isinstance(step, MethodType):
            return

        @functools.wraps(step.__func__)
        def first_step(own, *args, **kwargs):
            closure = kwargs.get("closure", args[0] if args else None)
            if own in self._waiting and callable(closure) and not self._is_trying:
                self._try(closure)
            if record_of(own) is None or record_of(own).is_running:
                return step(*args, **kwargs)
            return amp_step(own, *args, **kwargs)  # a trainer has saved this method and restored it

        optimizer.step = MethodType(first_step, optimizer)

    @staticmethod
    def release(optimizer):
        """Restore ``optimizer.step``, unless a scheduler has replaced it too."""
        code = getattr(vars(optimizer).get("step"), "__code__", None)  # a method has the attributes of its function
        if code is not None and code.co_filename == __file__:
            del optimizer.step

    def _try(self, closure):
        self._is_trying = True
        try:
            with random_state.restored(), torch.enable_grad():
                closure()
        except _Prepared:
            pass
        finally:
            self._is_trying = False

    def prepared(self):
        """Leave the closure that is run to prepare a model, if there is one."""
        if self._is_trying:
            raise _Prepared
