"""The API of ``apex.amp``: the same names, signatures and defaults.

``from apex import amp`` (under ``ampcompat run`` or after ``install``) and ``from ampcompat import amp`` are
the same functions.

A training step, at any level and on any device:

    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for input, target in batches:
        optimizer.zero_grad()
        loss = criterion(model(input), target)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
"""

from __future__ import annotations

from collections import OrderedDict
from typing import (
    TYPE_CHECKING,
    Any,
    ContextManager,
    Dict,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    overload,
)

import torch

from .engine.amp_names import O0, O1, O2, O3, O4, O5, AmpStateModule, Properties, init, opt_levels
from .engine.optimizers.optimizer_record import prepared_params, record_of
from .engine.session import process_state
from .engine.session.argument_checks import listed, make_request
from .engine.session.disabled_session import DisabledSession, disable
from .engine.session.registered_functions import (
    bfloat16_function,
    float_function,
    half_function,
    promote_function,
    register_bfloat16_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from .engine.session.training_session import new_session
from .errors import hide_internal_frames
from .observers.skipped_steps.diagnosis import add_diagnosis
from .observers.skipped_steps.skip_limit import set_skip_limit
from .observers.step_statistics.added_observers import add_observers
from .support.patching import run_after

if TYPE_CHECKING:
    from typing_extensions import Unpack  # every type checker has it; it is not imported at run time

    from .engine.session.type_annotations import InitializeOptions, KeptFloat32

__all__ = [
    "O0",
    "O1",
    "O2",
    "O3",
    "O4",
    "O5",
    "Properties",
    "bfloat16_function",
    "disable_casts",
    "float_function",
    "half_function",
    "init",
    "initialize",
    "lists",
    "load_state_dict",
    "master_params",
    "opt_levels",
    "promote_function",
    "register_bfloat16_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
    "step_was_skipped",
]

_amp_state = AmpStateModule("ampcompat.amp._amp_state")

#: The op table as Apex's lists. Changes to the lists before ``initialize`` take effect.
lists = process_state.lists

Models = TypeVar("Models", bound=Union[torch.nn.Module, Sequence[torch.nn.Module]])
Optimizers = TypeVar("Optimizers", bound=Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]])


def __dir__() -> List[str]:
    """List the API and nothing else."""
    return sorted(__all__)


@overload
def initialize(
    models: Models,
    optimizers: None = None,
    enabled: bool = True,
    opt_level: str = "O1",
    **options: Unpack[InitializeOptions],
) -> Models:
    """Without optimizers: return the models."""


@overload
def initialize(
    models: Models,
    optimizers: Optimizers,
    enabled: bool = True,
    opt_level: str = "O1",
    **options: Unpack[InitializeOptions],
) -> Tuple[Models, Optimizers]:
    """With optimizers: return both."""


@hide_internal_frames
def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: Optional[torch.dtype] = None,
    patch_torch_functions: Optional[bool] = None,
    keep_batchnorm_fp32: Union[bool, str, None] = None,
    master_weights: Optional[bool] = None,
    loss_scale: Union[float, str, None] = None,
    cast_model_outputs: Optional[torch.dtype] = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: Optional[float] = None,
    max_loss_scale: float = 2.0**24,
    *,
    patch_torch_functions_type: Optional[torch.dtype] = None,
    keep_fp32: Optional[KeptFloat32] = None,
    init_scale: Optional[float] = None,
    growth_factor: Optional[float] = None,
    backoff_factor: Optional[float] = None,
    growth_interval: Optional[int] = None,
    hysteresis: Optional[int] = None,
    skip_static_overflow: bool = False,
    max_skips: int = 50,
    raise_on_max_skips: bool = False,
    process_group: Any = None,
    diagnose: bool = False,
    free_half_grads: bool = False,
    store_param_remainders: bool = False,
    allow_half_model: bool = False,
) -> Any:
    """Prepare models and optimizers for mixed-precision training, in place.

    Args:
        models: a float32 ``torch.nn.Module`` on any device, or a list of them, not yet wrapped in
            DistributedDataParallel.
        optimizers: an optimizer, a list of them, or None.
        enabled: if False, all functions of ``amp`` do nothing afterwards.
        opt_level: "O0" (float32), "O1" (autocast to float16), "O2" (float16 weights, float32 master weights), "O3"
            (float16), "O4" and "O5" (O1 and O2 with bfloat16). The following options override those of the level.
        cast_model_type: the dtype of the weights.
        patch_torch_functions: whether torch's functions cast their inputs.
        keep_batchnorm_fp32: True or False (or "True", "False"): whether batch norm layers keep float32 weights.
        master_weights: whether the optimizer updates float32 master weights of half params.
        loss_scale: a positive number, such a number as a string, or "dynamic".
        cast_model_outputs: the dtype that floating-point outputs of the models are cast to.
        num_losses: the number of losses that are passed to ``scale_loss``, each with its own loss scale.
        verbosity: 0 prints nothing.
        min_loss_scale: the lower bound of a dynamic loss scale.
        max_loss_scale: the upper bound of a dynamic loss scale.
        patch_torch_functions_type: the low-precision dtype that functions cast to at O1 and O4.
        keep_fp32: module types, modules, name patterns (``fnmatch``) or predicates ``f(name, module)``. Layers that
            match keep float32 weights and compute in float32.
        init_scale: the initial dynamic loss scale; 2**16 if None.
        growth_factor: factor by which the loss scale is multiplied when it grows; 2 if None.
        backoff_factor: factor by which it is multiplied after an overflow; 0.5 if None.
        growth_interval: number of consecutive steps without overflow after which it grows; 2000 if None.
        hysteresis: number of overflows since the last growth after which it is reduced; 1 if None.
        skip_static_overflow: skip steps with an overflow under a static loss scale too; Apex did not.
        max_skips: number of consecutive skipped steps after which the reason is printed, once.
        raise_on_max_skips: raise ``GradientOverflowError``, a ``FloatingPointError`` and ``RuntimeError``, instead.
        process_group: True (all ranks) or a ``torch.distributed`` group whose ranks all skip a step if the gradients of
            one of them overflow. Needed if gradients differ between ranks, as with sharded params; all-reduced
        gradients overflow on every rank. Every rank of the group must call ``scale_loss`` equally often.
        diagnose: for every skipped step, print where inf or nan first occurred, how large the values were before, and
            what to try. Adds a few small operations per module and step, and no synchronization unless a step is
            skipped.
        free_half_grads: at O2 and O5, ``.grad`` of half params is None after ``scale_loss``, and the float32 gradients
            are freed in ``step``. Otherwise ``param.grad`` can be read as a half gradient until ``zero_grad``.
        store_param_remainders: at O5, store between steps only the 16 bits of float32 master weights that bfloat16
            weights do not have: 14 bytes per param with Adam instead of 18, with bitwise equal weights. For optimizers
            that update each param independently.
        allow_half_model: accept models whose weights are already half, such as those returned by
            ``from_pretrained(torch_dtype=…)``. If the level has float32 weights (or masters), they are cast from half,
            so they start with half precision.

    Returns:
        ``models``, or ``(models, optimizers)`` if optimizers were given; the same objects in the same structure.

    Raises:
        RuntimeError: the opt level is unknown, an option is invalid for it, a model has half weights or is wrapped, or
            an optimizer was initialized before. Models, optimizers and torch are left unchanged.
        TypeError: models or optimizers are of other types.
    """
    return _initialize(dict(locals()))


def _initialize(stated):
    """Initialize with ``stated``, the arguments of ``initialize``; return what it returns."""
    with process_state.changing:
        return _initialize_alone(stated)


def _initialize_alone(stated):
    models, optimizers = stated["models"], stated["optimizers"]
    initialized = models if optimizers is None else (models, optimizers)
    for function in list(process_state.before_initialize):
        function()
    if not stated["enabled"]:
        disable(stated["verbosity"], listed(models), listed(optimizers))
        return initialized
    session, disabled = process_state.current(), None
    is_new = session is None or not session.enabled
    if is_new:
        session, disabled = new_session(), session
    request = make_request(stated, session.overrides, session.dtypes)
    end_observing = None

    def finish(configuration):
        if isinstance(stated["enabled"], str):
            configuration.notices.level_given_as_enabled(stated["enabled"], request.policy)
        is_diagnosed_run = process_state.command_line().get("diagnose", False)
        if request.diagnose or is_diagnosed_run:
            add_diagnosis(session, prints_summary=is_diagnosed_run)
        set_skip_limit(session, configuration, request.skip_limit)
        if disabled is not None:
            disabled.close()
        return initialized

    try:
        if is_new:
            process_state.sessions.append(session)  # from here on ``reset`` ends what is begun
            end_observing = add_observers(session, **process_state.observed())
        if disabled is not None:
            disabled.hand_over(session)
        return session.initialize(request, stated["verbosity"], finish)
    except BaseException as error:
        if end_observing is not None:
            run_after(error, end_observing)
        if is_new:
            run_after(error, session.close)
        raise


@hide_internal_frames
def scale_loss(
    loss: torch.Tensor,
    optimizers: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]],
    loss_id: int = 0,
    model: Optional[torch.nn.Module] = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> ContextManager[torch.Tensor]:
    """Return a context manager that yields ``loss.float() * scale`` and unscales the gradients on exit.

    On exit, the gradients are divided by the scale (into the float32 master weights if there are any), added to those
    of earlier backward passes, and checked for inf and nan. The loss scale is updated, and after an overflow the next
    ``step()`` of each optimizer is skipped.

    Args:
        loss: a floating-point tensor.
        optimizers: the optimizer, or list of optimizers, whose params get gradients.
        loss_id: the index of the loss, less than ``num_losses``; each loss has its own scale.
        model: ignored, as in Apex.
        delay_unscale: keep the gradients scaled; a later ``scale_loss`` without this option unscales the sum.
        delay_overflow_check: unscale, but do not update the loss scale and do not skip the next step.

    Raises:
        RuntimeError: ``initialize`` was not called, or ``loss_id`` is not less than its ``num_losses``.
        TypeError: ``loss`` is not a tensor, or ``optimizers`` is not an optimizer or a list of them.
    """
    session = process_state.initialized_session("amp.scale_loss")
    return session.scale_loss(loss, optimizers, loss_id, delay_unscale, delay_overflow_check)


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Iterate over the params in ``optimizer.param_groups``, the float32 master weights. Use this to clip gradients."""
    return prepared_params(optimizer)


def step_was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer's last ``step()`` was skipped because of an overflow; False before the first step.

    The host waits for the device if ``step()`` did not read the flag, as with torch's fused optimizers.
    """
    record = record_of(optimizer)
    return record is not None and record.skips.was_last_skipped()


def state_dict(destination: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """Return ``{"loss_scaler0": {"loss_scale": float, "unskipped": int}, …}``; empty if amp is disabled.

    Args:
        destination: a dict to fill, or None for a new one.
    """
    destination = OrderedDict() if destination is None else destination
    session = process_state.current()
    if session is not None:
        destination.update(session.state_dict())
    return destination


@hide_internal_frames
def load_state_dict(state_dict: Dict[str, Any]) -> None:
    """Restore the loss scalers from a ``state_dict()``, also one of Apex.

    A state with fewer or more loss scalers than are in use is loaded with a warning.

    Raises:
        RuntimeError: ``initialize`` was not called, or the state has unknown keys; the message lists them.
    """
    process_state.initialized_session("amp.load_state_dict").load_state_dict(state_dict)


def disable_casts() -> ContextManager[None]:
    """Return a context manager in which functions do not cast their inputs in this thread; it can be nested."""
    session = process_state.current()
    return DisabledSession().cast_backend.paused() if session is None else session.cast_backend.paused()
