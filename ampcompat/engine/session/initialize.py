"""What ``amp.initialize`` does: a ``Plan`` is made and checked, a ``Preparation`` applies it with a ``Configuration``.

Nothing is changed before the plan is checked. If applying it raises, everything is undone.
"""

import functools
import gc
from typing import NamedTuple

import torch

from ...errors import AmpError, AmpValueError
from ...support import unversioned_writes
from ...support.live_objects import WeakList
from ...support.notices import Notices
from ...support.patching import run_all
from ...support.torch_compat.torch_names import dtype_name
from ..casting.torch_compile import is_tracing
from ..masters import zero_redundancy_optimizer
from ..models import averaged_model, cast_weights, forward_conversion, fsdp, state_dict
from ..optimizers import chunked_step, pickled_optimizers, replaced_methods
from ..optimizers.amp_stash import STASH
from ..optimizers.optimizer_record import OptimizerRecord, record_of
from . import process_state
from .untrained_params import UntrainedParams

#: Modules that take no hooks of ``state_dict``; before torch 1.5 traced modules are among them.
_SCRIPTED = getattr(torch.jit, "RecursiveScriptModule", torch.jit.ScriptModule)


class Plan(NamedTuple):
    """The models and optimizers of a request that are not initialized yet: some trainers call ``initialize`` twice.

    A model has grown if it is initialized, and modules or params were added since that must be cast too, such as a new
    head.
    """

    models: list
    grown_models: list
    optimizers: list


def make_plan(request, session):
    """Return the ``Plan`` of a ``Request``.

    Raises:
        AmpError: a model or an optimizer cannot be initialized, or not again with another policy.
    """
    policy, masters = request.policy, session.masters
    models = [model for model in request.models if session.policy_of(model) != policy]
    again = [model for model in request.models if model not in models] if policy.casts_model else []
    grown = [model for model in again if state_dict.new_modules(model, masters)]
    known = _params([model for model in (request.models if models else session.models) if model not in models])
    new = _params(models)
    optimizers = [each for each in request.optimizers if not _is_initialized(each, session, policy, known, new)]
    if policy.patch_torch_functions:
        check_casts(session, policy, request.models)
    _check_models(models, session, policy, request.allow_half_model or process_state.allow_incoming_model_not_fp32)
    _check_optimizers(optimizers, policy)
    for optimizer in optimizers if request.store_param_remainders else ():
        chunked_step.check(optimizer)
    return Plan(models, grown, optimizers)


def _params(models):
    return {id(param) for model in models for param in model.parameters()}


def _tensors_of(plan):
    tensors = [param for model in plan.models + plan.grown_models for param in model.parameters()]
    return tensors + [param for each in plan.optimizers for group in each.param_groups for param in group["params"]]


def _with_shown_masters(masters, context):
    """Return ``context()``, in which ``forward`` runs; first round what scripts have written to masters."""
    if not is_tracing():
        masters.show_written()
    return context()


def _is_initialized(optimizer, session, policy, known, new):
    """Return whether an optimizer has a record with these dtypes, and params of known models but of no new one.

    Params that belong to no model are allowed: they may be of a replaced head, or of a loss.
    """
    record = record_of(optimizer)
    if record is None or record.session is not session or record.configuration.policy.dtypes != policy.dtypes:
        return False
    params = {id(param) for param in record.leaf_params()}
    return bool(params & known) and not params & new


def check_casts(session, policy, models=()):
    """Raise if functions are cast to other dtypes in another model, which is alive, or because of ``amp.init``."""

    def others():
        policies = [session.policy_of(model) for model in session.models if model not in models]
        casting = [each for each in policies if each.patch_torch_functions]
        found = [(f"A model was initialized at {each.opt_level}, which", each.dtypes) for each in casting]
        found.append(("amp.init()", session.process_casts.dtypes_of_init))
        return [(what, dtypes) for what, dtypes in found if dtypes not in (None, policy.dtypes)]

    if not others():
        return
    gc.collect()  # a model may be in a cycle
    for what, dtypes in others():
        raise AmpError(
            f"{what} casts torch's functions to {dtype_name(dtypes.low)}, and this call would cast them to "
            f"{dtype_name(policy.dtypes.low)}: use one dtype for all models, or call ampcompat.reset() before the next "
            "training."
        )


def _check_models(models, session, policy, allow_half):
    for model in models:
        before = session.policy_of(model)
        if before is not None and before.casts_model:  # only the masters are float32 now
            raise AmpError(
                f"A model went through amp.initialize before, at {before.opt_level} with other options (now "
                f"{policy.opt_level}). Close that session with ampcompat.reset() first: it gives the model float32 "
                "weights again."
            )
    for model in models:
        fsdp.check(model, policy)
        cast_weights.check_model(model, allow_half)
        if policy.casts_model and any(isinstance(module, _SCRIPTED) for module in model.modules()):
            raise AmpError(
                "A model has a module compiled by torch.jit.script, whose state_dict cannot be made float32 at "
                f"{policy.opt_level}. Use O1 or O4, or compile the model with torch.jit.trace after amp.initialize."
            )


def _check_optimizers(optimizers, policy):
    for optimizer in optimizers:
        if policy.master_weights:
            zero_redundancy_optimizer.check(optimizer)
        if "FP16_Optimizer" in [base.__name__ for base in type(optimizer).__mro__]:
            raise AmpError(
                "An optimizer is wrapped in FP16_Optimizer, which does by itself what amp.initialize does. Pass the "
                "plain optimizer."
            )
        if hasattr(optimizer, STASH):
            raise AmpError(
                "An optimizer went through amp.initialize before, with another model or policy. Make a new optimizer "
                "for this model, or close the earlier session with ampcompat.reset() first."
            )
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise AmpValueError("The list of optimizers names one of them twice.")


class Configuration:
    """The policy, the loss scalers and the printed notices of one call of ``amp.initialize``.

    Models and optimizers of other calls have their own, whatever is initialized later.
    """

    def __init__(self, request, verbosity):
        self.policy = request.policy
        self.scalers = request.make_scalers()
        self.notices = Notices(verbosity)
        self.options = request.fixed_options()
        self.shows_half_gradients = not request.free_half_grads
        self.stores_remainders = request.store_param_remainders
        self.half_dtypes = []  # of params of its models, before it cast them
        self.untrained = UntrainedParams()
        self.records = WeakList()  # the ``OptimizerRecord`` of each of its optimizers

    def scaler_of(self, loss_id):
        """Return the ``LossScaler`` of a loss, counted within this call.

        Raises:
            AmpError: there is none.
        """
        try:
            return self.scalers[loss_id]
        except (IndexError, TypeError):
            count = len(self.scalers)
            there = "there is 1 loss scaler" if count == 1 else f"there are {count} loss scalers"
            needed = f"num_losses={loss_id + 1}" if isinstance(loss_id, int) and loss_id > 0 else "num_losses"
            raise AmpError(
                f"amp.scale_loss got loss_id={loss_id!r}, and {there}: pass {needed} to amp.initialize."
            ) from None

    def add_losses(self, request):
        """Make loss scalers for the losses that a later call for the same models and optimizers has added."""
        self.scalers += request.make_scalers()[len(self.scalers) :]


class Preparation:
    """Prepares models and optimizers for a session, whose ``PatchStack`` undoes it.

    Until ``commit``, ``undo`` and closing the session restore them as they were. Later, closing the session restores
    them with the weights and the optimizer state of the training.
    """

    def __init__(self, session):
        self._session = session
        self._patches = session.patches
        self._since = self._patches.mark()
        self._restore_casts = session.process_casts.restorer()
        self._cast = None
        self.half_mode = None  # in which the ``forward`` of whole models runs, or None
        self._records = []
        self._grown = []  # records of optimizers that got masters of new modules

    def undo(self):
        """Undo everything; raise the first error at the end."""
        run_all([(self._patches.undo, (self._since,)), (self._restore_casts, ())])

    def apply(self, plan, request, configuration):
        """Open the casts, cast the models' weights, mark their ``forward``, and prepare the optimizers."""
        session, policy = self._session, request.policy
        unversioned_writes.count(_tensors_of(plan), self._patches)
        if policy.patch_torch_functions:
            session.process_casts.open(policy.dtypes, plan.models + plan.optimizers)
        self._cast = cast_weights.ModelCast(policy.weights_dtype, policy.dtypes.high, self._patches)
        models = plan.models + plan.grown_models
        paused, entered, self.half_mode = session.process_casts.contexts_of_forward(policy, models)
        if policy.master_weights:
            entered = functools.partial(_with_shown_masters, session.masters, entered)
        for model in models:
            self._prepare_model(model, request, paused, entered)
        for record in list(session.records) if plan.grown_models else ():
            self._patches.defer_weakly(record.masters.rollback)
            self._grown.append(record)
            record.masters.make_new(self._cast.originals)
        for optimizer in plan.optimizers:
            self.add_optimizer(optimizer, configuration, self._cast.originals)
        session.ddp_wrappers.patch(policy, self._patches)
        if policy.casts_model:
            averaged_model.patch(self._patches)

    def _prepare_model(self, model, request, paused, entered):
        policy, masters = request.policy, self._session.masters
        low, high = policy.cast_model_type, policy.dtypes.high
        modules = state_dict.new_modules(model, masters) if policy.casts_model else list(model.modules())
        kept = cast_weights.matching(model, request.keep_fp32)
        if policy.weights_dtype is not None:
            kept += self._cast_weights(policy, model, modules, kept)
        elif request.allow_half_model:
            self._cast.cast(modules, modules)
        for module in [module for module in kept if module in modules]:
            self._mark(module, high, request.output_dtype if module is model else low, paused)
        if model not in kept and (model in modules or not forward_conversion.is_marked(model)):
            self._mark(model, low, request.output_dtype, entered, self.half_mode)

    def _cast_weights(self, policy, model, modules, kept):
        """Cast the weights of modules; return the batch norms that stay float32 and do not take half inputs."""
        inner = [child for module in kept for child in module.modules()]
        norms = cast_weights.batch_norms(model) if policy.keep_batchnorm_fp32 else []
        norms = [norm for norm in norms if norm not in inner]
        self._cast.cast(modules, inner + norms)
        low, high = policy.cast_model_type, policy.dtypes.high
        if policy.casts_model:
            fsdp.gather_in(policy, model, inner + norms, self._patches)
            state_dict.hook(modules, high, self._session.masters, self._patches)
        return [norm for norm in norms if cast_weights.needs_wide_input(norm, low, high)]

    def _mark(self, module, input_dtype, output_dtype, context, mode=None):
        token = self._session.forward_token
        conversion = forward_conversion.ForwardConversion(type(module), input_dtype, output_dtype, mode, context, token)
        forward_conversion.mark(module, conversion, self._patches)

    def add_optimizer(self, optimizer, configuration, originals):
        """Give an optimizer masters and its replaced methods; return its record.

        Args:
            originals: ``{id(param): (data, gradient)}`` from before the model was cast.
        """
        record = OptimizerRecord(optimizer, configuration, self._session)
        self.attach(record, originals, pickled_optimizers.take_pairs(optimizer))
        return record

    def attach(self, record, originals=None, pairs=()):
        """Replace the methods of a record's optimizer; make its masters first, unless ``originals`` is None."""
        self._records.append(record)
        record.methods = replaced_methods.ReplacedMethods(record.optimizer)
        # Kept by the record, and so by the optimizer itself: the original methods refer to the optimizer.
        self._patches.defer_weakly(record.methods.patches.undo)
        self._patches.defer_weakly(record.masters.release)
        if originals is not None:
            record.make_masters(originals, pairs)
        replaced_methods.attach(record)

    def make_known(self):
        """Make the optimizers and their masters known to the session."""
        for record in self._records:
            record.configuration.records.add(record)
        for record in self._grown + self._records:
            self._session.add_masters(record, record.pairs())

    def commit(self):
        """Keep the masters: nothing can fail any more."""
        for record in self._grown + self._records:
            record.masters.commit()
