"""``Session``: the policy, the casts, the loss scalers and the optimizer adapters that ``amp.initialize`` set up."""

import weakref

from .. import opt_levels
from ..errors import AmpError, AmpTypeError
from ..loss_scaling.scaler import scaler_states
from ..models import ddp, forward, fsdp, state_dict
from ..notices import Notices
from ..optimizers.adapter import SLOT
from ..patching import PatchStack, run_all
from ..weak_list import WeakList
from . import state
from .backward_pass import BackwardPass, UnscaledPass
from .callbacks import OptimizerCallbacks
from .initialize import Preparation, make_plan
from .process_casts import ProcessCasts
from .request import check_loss, is_optimizer


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
    """One mixed-precision training session. Closing it undoes every patch.

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
        self.masters = state_dict.MasterTable()
        self.ddp_wrappers = ddp.DDPWrappers(self.masters.find, self.refresh_masters)
        self.sharded_models = fsdp.ShardedModels()
        self.callbacks = OptimizerCallbacks(self)
        self.patches = PatchStack()
        self.forward_token = forward.Token()
        # Models and optimizers are held weakly, so that a loop over folds frees each fold.
        self.adapters = WeakList()
        self.policies = weakref.WeakKeyDictionary()  # model -> its policy
        self._fixed_options = weakref.WeakKeyDictionary()  # model -> ``Request.fixed_options()``
        self._models_before_backward = []  # weak references to models without a backward pass yet

    def initialize(self, request, verbosity=1):
        """Prepare the models and optimizers of a ``Request``: all of them, or none if one raises."""
        if not self._verbosity_is_given:
            self.verbosity = verbosity
        plan = make_plan(request, self)
        if plan.is_empty() and request.models:
            self._note_ignored(request)
            has_stopped = self.choice is None  # by ``handle._deactivate()``
            if request.policy.patch_torch_functions and has_stopped:
                self.process_casts.open(request.policy.dtypes)
        else:
            self._apply(plan, request)
        # More losses than at an earlier ``initialize`` get scalers.
        self.scalers += request.make_scalers()[len(self.scalers) :]
        if not plan.is_empty() or not request.models:
            for observer in self.observers:
                observer.initialized(self, plan.models, plan.optimizers)

    def _note_ignored(self, request):
        """Print which options of the request are not those that its models were initialized with."""
        given = {name: value for name, value in request.fixed_options().items() if value}
        known = [self._fixed_options[model] for model in request.models]
        ignored = sorted(name for name in given if any(given[name] != options.get(name) for options in known))
        if ignored:
            self.notices.options_ignored(ignored)

    def _apply(self, plan, request):
        policy = request.policy
        self.notices.selected(request.defaults, policy)
        if self.policy not in (None, policy):
            self.notices.policy_changed(policy, self.policy)
        with Preparation(self) as preparation:
            preparation.apply(plan, request)
            preparation.commit()
        self.process_casts.commit()
        for model in plan.models:
            self.policies[model] = policy
            self._fixed_options[model] = request.fixed_options()
            self._models_before_backward.append(weakref.ref(model))
        self.policy = policy
        if plan.models or plan.optimizers:
            self.scalers = []

    def add_masters(self, adapter):
        """Make the masters of an adapter known to checkpoints and wrappers; watch its half params for writes."""
        if adapter.pairs():
            self.masters.add(adapter.pairs())
            self.callbacks.writes.open(self.patches)

    def refresh_masters(self):
        """Copy to the masters what has been written to their half params."""
        for adapter in list(self.adapters):
            adapter.refresh_masters()

    def close(self):
        """Restore torch, ``forward``, the optimizers' methods and params, and float32 weights.

        If something raises (an observer, an overflow that is read only now), the rest is restored all the same. The
        first error is raised at the end, with the others in its chain of contexts.
        """
        calls = [(scaler.sync, ()) for scaler in self.scalers]
        calls += [(observer.closed, (self,)) for observer in self.observers]
        calls += [(self.forward_token.close, ()), (self.process_casts.close, ()), (self.patches.undo, ())]
        calls += [(self.policies.clear, ()), (self.masters.clear, ()), (state.leave, (self,))]
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
        return list(self.policies)

    @property
    def casts(self):
        """The active cast backend: a ``NoCasts`` at levels that cast no functions."""
        return self.process_casts.backend

    @property
    def choice(self):
        """The ``casting.Choice`` of that backend, or None."""
        return self.process_casts.choice

    def scale_loss(self, loss, optimizers, loss_id=0, delay_unscale=False, delay_overflow_check=False):
        """Return the context manager of one backward pass. See ``amp.scale_loss``."""
        check_loss(loss)
        scaler = self._scaler(loss_id)
        listed = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
        adapters = [getattr(each, SLOT, None) or self._new_adapter(each) for each in listed]
        if self._models_before_backward:
            self._check_shards()
        # A static loss scale of 1 without overflow checks is the only one, and nobody observes the passes.
        never_scales = len(self.scalers) == 1 and not self.observers and scaler.is_static_one()
        if never_scales and not any([adapter.has_state_to_update() for adapter in adapters]):
            return UnscaledPass(self, loss)
        return BackwardPass(self, loss, loss_id, scaler, adapters, delay_unscale, delay_overflow_check)

    def _check_shards(self):
        """Check the models that have had no backward pass yet: ``fully_shard`` may come after ``initialize``."""
        for reference in self._models_before_backward:
            model = reference()
            if model is not None:
                fsdp.check_shards(model, self.policies[model])
                self.sharded_models.add(model)
                fsdp.check_optimizers(model, [adapter.optimizer for adapter in self.adapters], self.notices)
        self._models_before_backward = []

    def _scaler(self, loss_id):
        try:
            return self.scalers[loss_id]
        except (IndexError, TypeError):
            count = len(self.scalers)
            there = "there is 1 loss scaler" if count == 1 else "there are {} loss scalers".format(count)
            needed = "num_losses={}".format(loss_id + 1) if isinstance(loss_id, int) and loss_id > 0 else "num_losses"
            raise AmpError(
                "amp.scale_loss got loss_id={!r}, and {}: pass {} to amp.initialize.".format(loss_id, there, needed)
            ) from None

    def _new_adapter(self, optimizer):
        """Return the adapter of an optimizer that ``initialize`` did not get."""
        if not is_optimizer(optimizer):
            raise AmpTypeError(
                "amp.scale_loss expected an optimizer or a list of them as its second argument, not {}.".format(
                    type(optimizer).__name__
                )
            )
        self.notices.optimizer_added(optimizer)
        with Preparation(self) as preparation:
            adapter = preparation.adapt(optimizer, self.policy, {})
            preparation.commit()
        return adapter

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
