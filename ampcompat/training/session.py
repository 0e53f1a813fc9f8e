"""``Session``: the policy, the casts, the loss scalers and the optimizer adapters that ``initialize`` set up.

Closing a session undoes every patch. An ``initialize`` that raises changes nothing.
"""

import weakref
from contextlib import ExitStack

from .. import opt_levels
from ..errors import AmpError, AmpTypeError
from ..loss_scaling.scaler import scaler_states
from ..models import ddp, forward, fsdp
from ..models import state_dict as state_dicts
from ..models import weights as model_parts
from ..notices import Notices
from ..optimizers import adapter as optimizer_parts
from ..optimizers import session_callbacks, step, written_params
from ..optimizers.masters import kept_where_equal
from ..optimizers.untracked_gradients import is_watched
from ..patching import PatchStack, run_all
from ..weak_list import WeakList
from . import initialize as requests
from . import reinitialize, state
from .backward_pass import BackwardPass
from .handle import Handle
from .process_casts import ProcessCasts


def new_session(backend=None, dtypes=None, verbosity=None, allow_banned=False, overrides=None, observers=()):
    """Return a ``Session`` with these options. Options of the command line override them."""
    line = state.command_line()
    line.pop("diagnose", None)  # amp.initialize adds the observers
    return Session(
        backend=line.pop("backend", None) or backend or "auto",
        dtypes=opt_levels.parse_dtypes(line.pop("dtypes", None)) or dtypes,
        verbosity=line.pop("verbosity", verbosity),
        allow_banned=allow_banned,
        observers=state.observers + list(observers),
        overrides=dict(overrides or {}, **line),
    )


class Session:
    """One mixed-precision training session.

    Args:
        backend: the cast backend at O1 and O4: "auto", "native" or "patched".
        dtypes: a ``DtypePair`` instead of the level's, or None.
        verbosity: 0 prints nothing, 1 prints notices; None leaves it to ``initialize``.
        allow_banned: functions that are unsafe in half run in float32 instead of raising.
        overrides: options that override the arguments of ``initialize``, ``opt_level`` among them.
        observers: the ``Observer`` objects whose callbacks are called.
    """

    enabled = True

    def __init__(self, backend="auto", dtypes=None, verbosity=None, allow_banned=False, overrides=None, observers=()):
        self.notices = Notices(1 if verbosity is None else verbosity)
        self.dtypes = dtypes
        self.overrides = dict(overrides or {})
        self.observers = list(observers)
        self._verbosity_is_given = verbosity is not None
        self.policy = None
        self.process_casts = ProcessCasts(backend, allow_banned)
        self.scalers = []
        self.masters = state_dicts.MasterTable()
        self.replicas = ddp.Replicas(self.masters.find, self.refresh_masters)
        self._patches = PatchStack()
        self._token = forward.Token()
        self._links = session_callbacks.Links(
            self.process_casts.stepping,
            self.process_casts.resumed,
            self._first_scaler,
            self._tell_skip,
            self.notices.foreign,
            self._keep_copy,
            self.notices.plain,
            self.replicas.are_by_hand,
            session_callbacks.Passes(),
            written_params.Writes(),
            self.observers,
        )
        # Models and optimizers are held weakly, so that a loop over folds frees each fold.
        self._adapters = WeakList()
        self._policies = weakref.WeakKeyDictionary()  # model -> its policy
        self._unseen = WeakList()  # models without a backward pass yet
        self.handle = Handle(self)

    # -- initialize ----------------------------------------------------------------------------------------------------

    def initialize(self, request, verbosity=1):
        """Prepare the models and optimizers of an ``initialize.Request``: all of them, or none if one raises."""
        policy = request.policy
        if not self._verbosity_is_given:
            self.verbosity = verbosity
        models, grown, optimizers = reinitialize.what_is_new(request, self._policies, self._links, self.masters)
        if request.models and not models and not optimizers and not grown:
            # All are initialized already: trainers that restore a run initialize twice. More losses get scalers.
            self.scalers += request.make_scalers()[len(self.scalers) :]
            if policy.patch_torch_functions and self.choice is None:  # ``handle._deactivate()`` stopped the casts
                self.process_casts.open(policy.dtypes)
            return
        self.notices.selected(request.defaults, policy)
        requests.check_again([self._policies[model] for model in models if model in self._policies], policy)
        requests.check_models(models, policy, state.allow_incoming_model_not_fp32)
        requests.check_optimizers(optimizers)
        if self.policy not in (None, policy):
            self.notices.other_policy(policy, self.policy)
        with PatchStack() as patches, ExitStack() as on_failure:
            if policy.patch_torch_functions:
                on_failure.callback(self.process_casts.open(policy.dtypes, models, optimizers))
            cast = self._prepare_models(models + grown, request, patches, on_failure)
            for adapter in list(self._adapters) if grown else ():
                on_failure.callback(adapter.abandon)
                adapter.join(cast.originals)
                self.masters.add(adapter.pairs())
            adapters = [self._adapt(each, policy, cast.originals, patches, on_failure) for each in optimizers]
            self.replicas.follow(policy, patches)
            on_failure.pop_all()
            self._keep(cast, adapters, patches)
            for adapter in list(self._adapters) if grown else ():
                adapter.settle_in()
        self.process_casts.settle_in()
        self._policies.update((model, policy) for model in models)
        for model in models:
            self._unseen.add(model)
        self.policy = policy
        self.scalers = request.make_scalers() if models or optimizers else self.scalers
        self.scalers += request.make_scalers()[len(self.scalers) :]
        for observer in self.observers:
            observer.initialized(self, models, optimizers)

    def _prepare_models(self, models, request, patches, on_failure):
        """Cast the models' weights and mark their ``forward``; return the ``ModelCast``."""
        policy = request.policy
        paused, entered = self.process_casts.contexts_of_forward(policy, models)
        cast = model_parts.ModelCast(policy.weights_dtype, policy.dtypes.high)
        on_failure.callback(cast.release)
        for model in models:
            modules = state_dicts.newcomers(model, self.masters) if policy.casts_model else list(model.modules())
            kept = model_parts.matching(model, request.keep_fp32)
            if policy.weights_dtype is not None:
                inner = [child for module in kept for child in module.modules()]
                norms = model_parts.batch_norms(model) if policy.keep_batchnorm_fp32 else []
                norms = [norm for norm in norms if norm not in inner]
                cast.cast(modules, inner + norms)
                kept += [
                    norm
                    for norm in norms
                    if model_parts.needs_wide_input(norm, policy.cast_model_type, policy.dtypes.high)
                ]
            if policy.casts_model:
                state_dicts.hook(modules, policy.dtypes.high, self.masters, patches)
            for module in [module for module in kept if module in modules]:
                outwards = request.output_dtype if module is model else policy.cast_model_type
                self._mark(module, patches, policy.dtypes.high, outwards, paused)
            if model not in kept and model in modules:
                self._mark(model, patches, policy.cast_model_type, request.output_dtype, entered)
        return cast

    def _mark(self, module, patches, input_dtype, output_dtype, context):
        casts = forward.ForwardCasts(type(module), input_dtype, output_dtype, context, self._token)
        forward.mark(module, casts, patches)

    def _adapt(self, optimizer, policy, originals, patches, on_failure):
        for param in [param for group in optimizer.param_groups for param in group["params"]]:
            master = self.masters.find(param)
            if master is not None:  # perhaps of an optimizer that this one replaces: keep its float32 value
                originals[id(param)] = (kept_where_equal(master.detach(), param.detach()), param.grad)
        adapter = optimizer_parts.OptimizerAdapter(
            optimizer, policy.dtypes, bool(policy.master_weights), originals, self._links
        )
        on_failure.callback(adapter.abandon)
        step.attach(adapter, patches)
        self.masters.add(adapter.pairs())
        return adapter

    def refresh_masters(self):
        """Copy to the masters what has been written to their half params."""
        for adapter in list(self._adapters):
            adapter.refresh_masters()

    def _keep(self, cast, adapters, patches):
        """Keep casts, adapters and patches for ``close``, now that nothing can fail any more."""
        cast.settle_in(patches)
        for adapter in adapters:
            self._keep_adapter(adapter, patches)
        self._patches.absorb(patches)

    def _keep_adapter(self, adapter, patches):
        adapter.settle_in()
        if adapter.pairs():
            self._links.writes.open(self._patches)
        self._adapters.add(adapter)
        patches.defer_weakly(adapter.release)

    def _keep_copy(self, adapter):
        with PatchStack() as patches:
            step.attach(adapter, patches)
            self._keep_adapter(adapter, patches)
            self._patches.absorb(patches)

    def close(self):
        """Restore torch, ``forward``, the optimizers' methods and params, and float32 weights.

        If something raises (an observer, an overflow that is read only now), the rest is restored all the same. The
        first error is raised at the end, with the others in its chain of contexts.
        """
        calls = [(scaler.settle, ()) for scaler in self.scalers]
        calls += [(observer.closed, (self,)) for observer in self.observers]
        calls += [(self._token.close, ()), (self.process_casts.close, ()), (self._patches.undo, ())]
        calls += [(self._policies.clear, ()), (state.leave, (self,))]
        run_all(calls)

    @property
    def verbosity(self):
        """How much this session prints: 0, 1 or more."""
        return self.notices.verbosity

    @verbosity.setter
    def verbosity(self, verbosity):
        self.notices.verbosity = verbosity

    @property
    def models(self):
        """The models that were initialized in this session and are still alive, as a list."""
        return list(self._policies)

    @property
    def casts(self):
        """The active cast backend: a ``NoCasts`` at levels that cast no functions."""
        return self.process_casts.backend

    @property
    def choice(self):
        """The ``casting.Choice`` of that backend, or None."""
        return self.process_casts.choice

    # -- a backward pass -----------------------------------------------------------------------------------------------

    def scale_loss(self, loss, optimizers, loss_id=0, delay_unscale=False, delay_overflow_check=False):
        """Return the context manager of one backward pass. See ``amp.scale_loss``."""
        requests.check_loss(loss)
        scaler = self._scaler(loss_id)
        adapters = [self._adapter(optimizer) for optimizer in _listed(optimizers)]
        for model in self._unseen if self._unseen else ():
            fsdp.check_whole(model, self._policies[model])
            fsdp.check_optimizers(model, [adapter.optimizer for adapter in self._adapters], self.notices)
            self._unseen.discard(model)
        others = ()
        if len(self._adapters) > len(adapters):
            others = [each for each in self._adapters if is_watched(each) and each not in adapters]
        high = self.policy.dtypes.high
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
        for observer in self.observers:
            observer.step_skipped(self, loss_id, scaler)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self):
        """Return the state of every loss scaler by its key."""
        return {"loss_scaler{}".format(index): scaler.state_dict() for index, scaler in enumerate(self.scalers)}

    def load_state_dict(self, state_dict):
        """Load the states of the loss scalers that are both in ``state_dict`` and in this session."""
        states = scaler_states(state_dict)
        if len(states) != len(self.scalers):
            self.notices.scaler_counts(len(states), len(self.scalers))
        for index, scaler in enumerate(self.scalers):
            if index in states:
                scaler.load_state_dict(states[index])


def _listed(optimizers):
    return list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
