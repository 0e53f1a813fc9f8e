"""One mixed-precision session: what ``initialize`` set up, and how to take it down again.

Owns: the policy, the cast backend, the loss scalers, and every patch made for them.
Must not touch: torch functions, weights and gradients directly; it tells the parts to.
The surprise: models and optimizers are held weakly, so that a loop over folds frees each fold; and whatever can fail is tried
before anything is kept, so that an ``initialize`` that raises leaves no trace.
"""

import weakref
from contextlib import ExitStack

from ..errors import AmpError, AmpTypeError
from ..parts.bystanders import Bystander, is_watched
from ..parts import forwards, models as model_parts, optimizers as optimizer_parts, replicas, sharding, state_dicts, steps
from ..parts.notices import Notices
from ..parts.patching import PatchStack
from ..parts.scaler import scaler_states
from ..tables import opt_levels
from . import requests, state
from .backward import BackwardPass
from .casts import ProcessCasts
from .forensics import attend, diagnosing
from .handle import Handle
from .hopeless import SkipWatch


def new_session(backend=None, dtypes=None, verbosity=None, allow_banned=False, overrides=None, observers=()):
    """Return a ``Session`` with these wishes; those of the command line win over them."""
    line = state.command_line()
    return Session(
        backend=line.pop("backend", None) or backend or "auto",
        dtypes=opt_levels.parse_dtypes(line.pop("dtypes", None)) or dtypes,
        verbosity=line.pop("verbosity", verbosity),
        allow_banned=allow_banned,
        observers=diagnosing(state.observers + list(observers), line.pop("diagnose", False), sums_up=True),
        overrides=dict(overrides or {}, **line),
    )


class Session:
    """A place where models train in mixed precision.

    Args:
        backend: who casts at O1 and O4: "auto", "native" or "patched".
        dtypes: a ``DtypePair`` instead of the level's, or None.
        verbosity: 0 for silence, 1 for what a user wants to know; None leaves it to ``initialize``.
        allow_banned: functions that are unsafe in half run in float32 instead of raising.
        overrides: options that win over what ``initialize`` asks for, ``opt_level`` among them.
        observers: the ``Observer`` objects that hear what happens.
    """

    enabled = True

    def __init__(
        self, backend="auto", dtypes=None, verbosity=None, allow_banned=False, overrides=None, observers=()
    ):
        self.notices = Notices(1 if verbosity is None else verbosity)
        self.dtypes = dtypes
        self.overrides = dict(overrides or {})
        self.observers = list(observers)
        self._verbosity_is_given = verbosity is not None
        self.policy = None
        self.process_casts = ProcessCasts(backend, allow_banned)
        self.scalers = []
        self.masters = state_dicts.MasterTable()
        self.replicas = replicas.Replicas(self.masters.find)
        self._patches = PatchStack()
        self._token = forwards.Token()
        self._links = optimizer_parts.Links(
            self.process_casts.stepping,
            self.process_casts.resumed,
            self._first_scaler,
            self._tell_skip,
            self.notices.foreign,
            self._keep_copy,
            self.observers,
        )
        self._model_casts = []
        self._last_losses = {}  # loss_id -> the loss of its last pass, for whoever asks why it overflowed
        self._skip_watch = None
        self._adapters = weakref.WeakSet()
        self._policies = weakref.WeakKeyDictionary()  # model -> its policy
        self._unseen = weakref.WeakSet()  # models that have not been through a pass yet
        self.handle = Handle(self)

    # -- initialize ----------------------------------------------------------------------------------------------------

    def initialize(self, request, verbosity=1):
        """Prepare the models and optimizers of a ``requests.Request``: all of them, or none and an error."""
        policy = request.policy
        if not self._verbosity_is_given:
            self.verbosity = verbosity
        models = [model for model in request.models if self._policies.get(model) != policy]
        known = [model for model in (request.models if models else self._policies) if model not in models]
        optimizers = [each for each in request.optimizers if not self._is_in_force(each, policy, known)]
        if request.models and not models and not optimizers:
            # All of it is in force already: trainers that restore a run initialize twice. More losses are welcome.
            self.scalers += request.make_scalers()[len(self.scalers) :]
            return
        self.notices.selected(request.defaults, policy)
        requests.check_again([self._policies[model] for model in models if model in self._policies], policy)
        requests.check_models(models, policy, state.allow_incoming_model_not_fp32)
        requests.check_optimizers(optimizers)
        if self.policy not in (None, policy):
            self.notices.other_policy(policy, self.policy)
        with PatchStack() as patches, ExitStack() as on_failure:
            if policy.patch_torch_functions:
                on_failure.callback(self.process_casts.open(policy.dtypes))
            cast = self._prepare_models(models, request, patches, on_failure)
            adapters = [self._adapt(each, policy, cast.originals, patches, on_failure) for each in optimizers]
            self.replicas.follow(policy.casts_model, patches)
            on_failure.pop_all()
            self._keep(cast, adapters, patches)
        self.process_casts.settle_in()
        self._policies.update((model, policy) for model in models)
        self._unseen.update(models)
        self.policy = policy
        self.scalers = request.make_scalers()
        if self._skip_watch is not None:
            self._skip_watch.close()
        self._skip_watch = SkipWatch(self.notices, self._policies.keys, self.observers, *request.skip_limit)
        attend(self, request.diagnose, list(self._policies))
        for observer in self.observers:
            observer.initialized(self, models, optimizers)

    def _is_in_force(self, optimizer, policy, models):
        """Return whether an optimizer has its adapter here, with these dtypes, and all its params are of these models."""
        adapter = getattr(optimizer, optimizer_parts.SLOT, None)
        if getattr(adapter, "links", None) is not self._links or adapter.dtypes != policy.dtypes:
            return False
        known = {id(param) for model in models for param in model.parameters()}
        return all(id(param) in known for param in adapter.reached())

    def _prepare_models(self, models, request, patches, on_failure):
        """Cast the models' weights and mark their ``forward``; return the ``ModelCast``."""
        policy = request.policy
        paused, entered = self.process_casts.contexts_of_forward(policy, models)
        cast = model_parts.ModelCast(policy.weights_dtype, policy.dtypes.high)
        on_failure.callback(cast.release)
        for model in models:
            kept = model_parts.matching(model, request.keep_fp32)
            if policy.weights_dtype is not None:
                inner = [child for module in kept for child in module.modules()]
                norms = model_parts.batch_norms(model) if policy.keep_batchnorm_fp32 else []
                norms = [norm for norm in norms if norm not in inner]
                cast.cast(model, inner + norms)
                kept += [norm for norm in norms if model_parts.needs_wide_input(norm, policy.cast_model_type, policy.dtypes.high)]
            if policy.casts_model:
                state_dicts.hook(model, policy.dtypes.high, self.masters, patches)
            for module in kept:
                outwards = request.output_dtype if module is model else policy.cast_model_type
                self._mark(module, patches, policy.dtypes.high, outwards, paused)
            if model not in kept:
                self._mark(model, patches, policy.cast_model_type, request.output_dtype, entered)
        return cast

    def _mark(self, module, patches, input_dtype, output_dtype, context):
        casts = forwards.ForwardCasts(type(module), input_dtype, output_dtype, context, self._token)
        forwards.mark(module, casts, patches)

    def _adapt(self, optimizer, policy, originals, patches, on_failure):
        for param in [param for group in optimizer.param_groups for param in group["params"]]:
            master = self.masters.find(param)
            if master is not None:  # of an optimizer that this one replaces, perhaps: its float32 value lives on
                originals[id(param)] = (master.detach().clone(), param.grad)
        adapter = optimizer_parts.OptimizerAdapter(
            optimizer, policy.dtypes, bool(policy.master_weights), originals, self._links
        )
        on_failure.callback(adapter.abandon)
        steps.attach(adapter, patches)
        self.masters.add(adapter.pairs())
        return adapter

    def _keep(self, cast, adapters, patches):
        """Let go of the way back, now that nothing can fail any more, and remember the way down."""
        cast.settle_in()
        self._model_casts.append(cast)
        patches.defer_weakly(cast.release)
        for adapter in adapters:
            self._keep_adapter(adapter, patches)
        self._patches.absorb(patches)

    def _keep_adapter(self, adapter, patches):
        adapter.settle_in()
        self._adapters.add(adapter)
        patches.defer_weakly(adapter.release)

    def _keep_copy(self, adapter):
        with PatchStack() as patches:
            steps.attach(adapter, patches)
            self._keep_adapter(adapter, patches)
            self._patches.absorb(patches)

    def close(self):
        """Put everything back: torch, ``forward``, the optimizers' methods and params, float32 weights."""
        state.settle(self)
        for observer in self.observers:
            observer.closed(self)
        if self._skip_watch is not None:
            self._skip_watch.close()
        self._token.close()
        self.process_casts.close()
        self._patches.undo()
        self._policies.clear()
        if self in state.sessions:
            state.sessions.remove(self)

    @property
    def verbosity(self):
        """How much this session says: 0, 1 or more."""
        return self.notices.verbosity

    @verbosity.setter
    def verbosity(self, verbosity):
        self.notices.verbosity = verbosity

    @property
    def casts(self):
        """The cast backend in force: a ``NoCasts`` at levels that cast no functions."""
        return self.process_casts.backend

    @property
    def choice(self):
        """The ``backends.Choice`` of that backend, or None."""
        return self.process_casts.choice

    # -- a backward pass -----------------------------------------------------------------------------------------------

    def scale_loss(self, loss, optimizers, loss_id=0, delay_unscale=False, delay_overflow_check=False):
        """Return the context manager of one backward pass. See ``amp.scale_loss``."""
        requests.check_loss(loss)
        scaler = self._scaler(loss_id)
        adapters = [self._adapter(optimizer) for optimizer in _listed(optimizers)]
        for model in list(self._unseen) if self._unseen else ():
            sharding.check_whole(model, self._policies[model])
            sharding.check_optimizers(model, [adapter.optimizer for adapter in self._adapters], self.notices)
            self._unseen.discard(model)
        others = ()
        if len(self._adapters) > len(adapters):
            others = [Bystander(each) for each in self._adapters if is_watched(each) and each not in adapters]
        high = self.policy.dtypes.high
        self._last_losses[loss_id] = loss.detach()
        parts = (self.process_casts, self.replicas, self.observers)
        return BackwardPass(loss, high, scaler, loss_id, adapters, others, *parts, delay_unscale, delay_overflow_check)

    def _scaler(self, loss_id):
        try:
            return self.scalers[loss_id]
        except (IndexError, TypeError):
            raise AmpError(
                "amp.scale_loss got loss_id={!r}, and there are {} loss scalers: pass num_losses to "
                "amp.initialize.".format(loss_id, len(self.scalers))
            ) from None

    def _adapter(self, optimizer):
        adapter = getattr(optimizer, optimizer_parts.SLOT, None)
        if adapter is not None:
            return adapter
        if not requests.is_optimizer(optimizer):
            raise AmpTypeError(
                "amp.scale_loss expected an optimizer or a list of them as its second argument, not {}.".format(
                    type(optimizer).__name__
                )
            )
        self.notices.adopted(optimizer)
        with PatchStack() as patches, ExitStack() as on_failure:
            adapter = self._adapt(optimizer, self.policy, {}, patches, on_failure)
            on_failure.pop_all()
            self._keep_adapter(adapter, patches)
            self._patches.absorb(patches)
        return adapter

    def _first_scaler(self):
        return self.scalers[0]

    def _tell_skip(self, loss_id, scaler):
        self.notices.overflow(loss_id, scaler)
        loss = self._last_losses.get(loss_id)
        for observer in self.observers:
            observer.skipped(self, loss_id, scaler)
        self._skip_watch.skipped(scaler, loss_id, loss, self.masters.find)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self):
        """Return the state of every loss scaler by its key."""
        return {"loss_scaler{}".format(index): scaler.state_dict() for index, scaler in enumerate(self.scalers)}

    def load_state_dict(self, state_dict):
        """Take over the state of every loss scaler that is in both places."""
        states = scaler_states(state_dict)
        if len(states) != len(self.scalers):
            self.notices.scaler_counts(len(states), len(self.scalers))
        for index, scaler in enumerate(self.scalers):
            if index in states:
                scaler.load_state_dict(states[index])


def _listed(optimizers):
    return list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
