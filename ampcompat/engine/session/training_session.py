"""``Session``: what is process-wide: the casts, the patches, the observers, and the list of what is initialized.

Policies and loss scalers belong to the ``Configuration`` of each call of ``amp.initialize``.
"""

import functools
import gc
import operator
import weakref
from contextlib import nullcontext
from itertools import chain

from ... import opt_levels
from ...errors import AmpTypeError
from ...support import swapped_tensors
from ...support.live_objects import WeakList, live_items, live_keys
from ...support.notices import Notices
from ...support.patching import PatchStack, run_after
from ...support.torch_compat.thread_blocks import end_thread_blocks
from ..loss_scaling.loss_scaler import scaler_states
from ..masters.session_masters import SessionMasters
from ..models import cast_weights, ddp, forward_conversion, fsdp
from ..optimizers import chunked_step, step_or_skip
from ..optimizers.optimizer_record import record_of
from . import process_state, replaced_params, untrained_params
from .argument_checks import check_loss, is_module, is_optimizer, listed
from .initialize import Configuration, Preparation, make_plan
from .optimizers_without_amp import OptimizersWithoutAmp
from .process_casts import ProcessCasts
from .scale_loss import BackwardPass, UnscaledPass


def new_session(backend=None, dtypes=None, verbosity=None, allow_banned=False, overrides=None, observers=()):
    """Return a ``Session`` with these options. Options of the command line override them."""
    line = process_state.command_line()
    line.pop("diagnose", None)  # amp.initialize adds the observers
    return Session(
        backend=line.pop("backend", None) or backend or "auto",
        dtypes=opt_levels.parse_dtypes(line.pop("dtypes", None)) or dtypes,
        verbosity=line.pop("verbosity", verbosity),
        allow_banned=allow_banned,
        observers=process_state.observers + list(observers),
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
    """

    enabled = True

    def __init__(self, backend="auto", dtypes=None, verbosity=None, allow_banned=False, overrides=None, observers=()):
        self.dtypes = dtypes
        self.overrides = dict(overrides or {})
        self.observers = list(observers)
        self._notices = Notices(1 if verbosity is None else verbosity)  # until ``initialize`` was called
        self._verbosity_is_given = verbosity is not None
        self.process_casts = ProcessCasts(backend, allow_banned)
        self.masters = SessionMasters(lambda: self.ddp_wrappers.are_weights_shared_by_hand())
        self.ddp_wrappers = ddp.DDPWrappers(self.masters.find, self.refresh_masters)
        self.sharded_models = fsdp.ShardedModels()
        self.optimizers_without_amp = OptimizersWithoutAmp()
        self.with_aside = WeakList()  # ``HeldGradients`` that have set gradients aside
        self.patches = PatchStack()
        self.forward_token = forward_conversion.Token()
        # Models, optimizers and what was decided for them are held weakly, so that a loop over folds frees each fold.
        self.configurations = WeakList()  # call after call of ``initialize``
        self._latest = None  # the last of them
        self._configuration_of = weakref.WeakKeyDictionary()  # model -> its ``Configuration``
        self._rounds_after_steps = False  # of optimizers that are not initialized
        self._disabled = weakref.WeakSet()  # models and optimizers of ``initialize(enabled=False)``

    # -- initialize ----------------------------------------------------------------------------------------------------

    def initialize(self, request, verbosity, finish):
        """Prepare the models and optimizers of a ``Request``, and return ``finish(configuration)``.

        If anything raises, ``finish`` too, models and optimizers are left as they were.
        """
        plan = make_plan(request, self)
        verbosity = self.verbosity if self._verbosity_is_given else verbosity
        if request.models and not any(plan):
            return finish(self._initialize_again(request, verbosity))
        configuration = Configuration(request, verbosity)
        preparation, latest = Preparation(self), self._latest
        known = {model: self._configuration_of.get(model) for model in plan.models}
        observers = list(self.observers)
        try:
            self._apply(preparation, plan, request, configuration)
            for observer in self.observers:
                observer.initialized(self, plan.models, plan.optimizers)
            result = finish(configuration)
            preparation.commit()
            return result
        except BaseException as error:
            self._latest = latest
            run_after(error, preparation.undo)
            for observer in [each for each in self.observers if each not in observers]:  # added by ``finish``
                self.observers.remove(observer)
                run_after(error, functools.partial(observer.closed, self))
            self.configurations.discard(configuration)
            for model, earlier in known.items():
                if earlier is None:
                    self._configuration_of.pop(model, None)
                else:
                    self._configuration_of[model] = earlier
            raise

    def _initialize_again(self, request, verbosity):
        """Print which options are not those of the earlier call; return the ``Configuration`` of that."""
        given = {name: value for name, value in request.fixed_options().items() if value}
        known = [self._configuration_of[model] for model in request.models]
        ignored = sorted(name for name in given if any(given[name] != each.options.get(name) for each in known))
        configuration = ([record_of(each).configuration for each in request.optimizers] or known)[0]
        if ignored:
            Notices(verbosity).options_ignored(ignored)
        if request.policy.patch_torch_functions and self.choice is None:  # stopped by ``handle._deactivate()``
            self.process_casts.open(request.policy.dtypes)
        configuration.add_losses(request)
        return configuration

    def _apply(self, preparation, plan, request, configuration):
        policy = request.policy
        # A script without Apex, whose level is forced, is not to be surprised by Apex's tables.
        configuration.notices.selected(None if process_state.before_initialize else request.defaults, policy)
        if self.policy not in (None, policy):
            configuration.notices.policy_changed(policy, self.policy)
        configuration.half_dtypes = cast_weights.half_dtypes(plan.models)
        for dtype in configuration.half_dtypes if request.allow_half_model else ():
            configuration.notices.half_model(dtype, policy)
        preparation.apply(plan, request, configuration)
        preparation.make_known()
        if self._latest is None:
            swapped_tensors.allow(self.patches)
            untrained_params.watch_registrations(self._forget_untrained, self.patches)
        self.process_casts.add_models(policy.dtypes if policy.casts_model else None, preparation.half_mode)
        self.configurations.add(configuration)
        self._latest = configuration
        self._forget_untrained()
        for model in plan.models:
            self._configuration_of[model] = configuration
            self.sharded_models.add(model, configuration)
        for record in configuration.records:
            record.place = replaced_params.place_of(record)

    def disable(self, disabled):
        """Leave models and optimizers of ``initialize(enabled=False)`` as they are, also in ``scale_loss``."""
        self._disabled.update(disabled)
        context = self.process_casts.context_of_uncast_forward
        for model in filter(is_module, disabled):
            if not forward_conversion.is_marked(model):
                conversion = forward_conversion.ForwardConversion(
                    type(model), context=context, token=self.forward_token
                )
                forward_conversion.mark(model, conversion, self.patches)

    def _forget_untrained(self):
        for each in self.configurations:
            each.untrained.forget()

    def add_masters(self, record, pairs):
        """Make new masters known to checkpoints, wrappers and readers of ``.grad``; watch what a script writes."""
        self._forget_untrained()
        self.masters.add(record, pairs, self.patches)
        if record.masters.are_stored:
            self.masters.restore_before_writes(self.patches)
        if pairs and not self._rounds_after_steps:
            self.patches.defer(setattr, self, "_rounds_after_steps", False)
            self._rounds_after_steps = True
            step_or_skip.round_after_steps(self, self.patches)

    def add_copy(self, record):
        """Add the record of a deep copy of an optimizer."""
        self._prepare(Preparation.attach, record)

    def _prepare(self, function, *args):
        preparation = Preparation(self)
        try:
            result = function(preparation, *args)
            preparation.make_known()
            preparation.commit()
        except BaseException as error:
            run_after(error, preparation.undo)
            raise
        return result

    def refresh_masters(self):
        """Copy to the masters what has been written to their half params."""
        for record in self.records:
            record.masters.refresh()

    def close(self):
        """Restore torch, ``forward``, the optimizers' methods and params, and float32 weights. Open blocks end before.

        If something raises (an observer, an overflow that is read only now), the rest is still restored. What raises is
        tried once more, and a session whose closing was interrupted can be closed again.
        """
        blocks = {id(block): block for record in self.records for block in record.open_blocks}.values()
        calls = [(block.end_with_session, ()) for block in blocks]
        calls += [(scaler.sync, ()) for scaler in self.all_scalers()]
        calls += [(observer.closed, (self,)) for observer in self.observers]
        calls += [(self.forward_token.close, ()), (self.process_casts.close, ())]
        # Half params are released before any of them is cast back: a later ``initialize`` may have cast some.
        calls += [(record.masters.release, ()) for record in reversed(self.records)] + [(self.patches.undo, ())]
        calls += [(self._configuration_of.clear, ()), (self.masters.clear, ())]
        calls += [(block.session_closed, ()) for block in blocks] + [(process_state.leave, (self,))]
        calls += [(end_thread_blocks, ())]  # last, since the others may be interrupted too
        closing = PatchStack()
        for function, args in reversed(calls):
            closing.defer(function, *args)
        closing.undo()

    # -- what is initialized -------------------------------------------------------------------------------------------

    @property
    def records(self):
        """The ``OptimizerRecord`` of every optimizer, call of ``initialize`` after call, as a list."""
        return list(chain.from_iterable(map(operator.attrgetter("records"), self.configurations)))

    @property
    def policy(self):
        """The ``Policy`` of the newest call of ``initialize`` that got an optimizer, else of the newest; or None."""
        return getattr(self._newest(), "policy", None)

    def is_initialized(self):
        """Return whether ``initialize`` was called."""
        return self._latest is not None or bool(self._disabled)

    def _newest(self):
        return next((each for each in reversed(list(self.configurations)) if each.records), self._latest)

    def models_of(self, configuration):
        """Return the living models of a ``Configuration`` as a list."""
        return [model for model, each in live_items(self._configuration_of) if each is configuration]

    def policy_of(self, model):
        """Return the ``Policy`` of a model; None if it is not initialized."""
        return getattr(self._configuration_of.get(model), "policy", None)

    def configuration_of(self, optimizers):
        """Return the ``Configuration`` of one optimizer, or of the first of a list; the newest if it has none yet."""
        records = [record_of(each) for each in listed(optimizers)]
        return next((each.configuration for each in records if each is not None), self._newest())

    @property
    def scalers(self):
        """The loss scalers of the newest call of ``initialize`` that got an optimizer, else of the newest.

        Scripts replace elements of this list, or all of it.
        """
        newest = self._newest()
        return [] if newest is None else newest.scalers

    @scalers.setter
    def scalers(self, scalers):
        self._newest().scalers = list(scalers)

    def all_scalers(self):
        """Return the loss scalers of every call of ``initialize``, call after call."""
        return [scaler for each in self.configurations for scaler in each.scalers]

    @property
    def notices(self):
        """What prints notices that belong to no optimizer: that of the newest call of ``initialize``."""
        return self._notices if self._latest is None else self._latest.notices

    @property
    def verbosity(self):
        """How much this session prints: 0, 1 or more."""
        return self.notices.verbosity

    @verbosity.setter
    def verbosity(self, verbosity):
        for notices in [self._notices] + [each.notices for each in self.configurations]:
            notices.verbosity = verbosity

    @property
    def models(self):
        """The models that were initialized in this session and are still alive, as a list."""
        return live_keys(self._configuration_of)

    @property
    def cast_backend(self):
        """The active cast backend: a plain ``CastBackend`` at levels that cast no functions."""
        return self.process_casts.backend

    @property
    def choice(self):
        """The ``casting.Choice`` of that backend, or None."""
        return self.process_casts.choice

    # -- passes --------------------------------------------------------------------------------------------------------

    def scale_loss(
        self, loss, optimizers, loss_id=0, delay_unscale=False, delay_overflow_check=False, untrained_leaves=()
    ):
        """Return the context manager of one backward pass. See ``amp.scale_loss``.

        Args:
            untrained_leaves: tensors that no optimizer has, whose gradients are unscaled like those of the models.
        """
        check_loss(loss)
        given = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
        enabled = [each for each in given if each not in self._disabled] if self._disabled else given
        if given and not enabled:
            return nullcontext(loss)
        adopted, records = [], []
        for each in enabled:
            record = record_of(each) or self._inner_record(each)
            if record is None:
                record = self._adopt(each)
                adopted.append(record)
            if record not in records:
                records.append(record)
        configuration = records[0].configuration if records else self._newest()
        if configuration is None:
            raise process_state.not_initialized("amp.scale_loss")
        scaler = configuration.scaler_of(loss_id)
        if self.sharded_models.unchecked:
            self.sharded_models.check_new(self.records)
        if not process_state.before_initialize:  # a script whose level is forced runs on as it does without
            for record in records:
                if record.place is not None and record.place.has_other_param():
                    replaced_params.check(record)
        # A static loss scale of 1 without overflow checks is the only one, and nobody observes the passes.
        never_scales = len(configuration.scalers) == 1 and not self.observers and scaler.is_static_one()
        if never_scales and not adopted and not any([record.has_state_to_update() for record in records]):
            return UnscaledPass(configuration, loss)
        options = delay_unscale, delay_overflow_check, untrained_leaves
        return BackwardPass(self, configuration, loss, loss_id, scaler, records, adopted, *options)

    def _inner_record(self, optimizer):
        """Return the record of the optimizer that this one was made around after ``initialize``: it has its masters."""
        params = {id(param) for group in getattr(optimizer, "param_groups", ()) for param in group["params"]}
        return next(
            (record for record in self.records if any(id(pair.master) in params for pair in record.pairs())), None
        )

    def _adopt(self, optimizer):
        """Return the record of an optimizer that ``initialize`` did not get: its params decide whose it is."""
        if not is_optimizer(optimizer):
            raise AmpTypeError(
                "amp.scale_loss expected an optimizer or a list of them as its second argument, not "
                f"{type(optimizer).__name__}."
            )
        configuration = self._configuration_by_params(optimizer)
        if configuration is None:
            raise process_state.not_initialized("amp.scale_loss")
        if configuration.stores_remainders:
            chunked_step.check(optimizer)
        configuration.notices.optimizer_added(optimizer)
        return self._prepare(Preparation.add_optimizer, optimizer, configuration, {})

    def _configuration_by_params(self, optimizer):
        """Return the ``Configuration`` of the newest model that has a param of this optimizer, else the newest."""
        owned = {id(param) for group in optimizer.param_groups for param in group["params"]}
        for model in reversed(self.models):
            if any(id(param) in owned for param in model.parameters()):
                return self._configuration_of[model]
        return self._newest()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self):
        """Return the state of every loss scaler by its key."""
        scalers = self._saved_scalers()
        return {f"loss_scaler{index}": scaler.state_dict() for index, scaler in enumerate(scalers)}

    def load_state_dict(self, state_dict):
        """Load the states of the loss scalers that are both in ``state_dict`` and in this session."""
        states = scaler_states(state_dict)
        scalers = self._saved_scalers()
        if len(states) != len(scalers):
            self.notices.scaler_counts(len(states), len(scalers))
        for index, scaler in enumerate(scalers):
            if index in states:
                scaler.load_state_dict(states[index])

    def _saved_scalers(self):
        """Return the loss scalers of the calls of ``initialize`` that got optimizers, call after call.

        Without those of optimizers that a script has dropped, such as those of earlier folds. Before any optimizer is
        known, those of the newest call.
        """
        if sum([bool(each.records) for each in self.configurations]) > 1:
            gc.collect()  # an optimizer with replaced methods refers to itself
        return [scaler for each in self.configurations if each.records for scaler in each.scalers] or self.scalers
