"""MMCV's optimizer hooks: one iteration's backward pass, gradient clipping and step, at any opt level.

A runner is any object with ``model``, ``optimizer``, ``outputs["loss"]``, and ``iter`` for gradient accumulation.
``max_iters``, ``meta``, ``log_buffer`` and ``logger`` are used if it has them. mmcv's runner accepts only subclasses of
its own ``Hook``, which mmcv has until 1.x; without it, ``Hook`` is a plain class.
"""

import contextlib
import importlib
import importlib.util
import logging

import torch
import torch.distributed as dist

from .. import amp, opt_levels
from ..apex.parallel import buckets
from ..engine.optimizers.optimizer_record import record_of
from ..engine.session import process_state
from ..engine.session.optimizers_without_amp import leaves_of
from ..errors import AmpError, AmpTypeError
from ..support.torch_compat.thread_context import world_size
from . import session_access
from .accumulation_schedule import NO_ACCUMULATION, AccumulationSchedule
from .casts import wrap_fp16_model
from .mmcv_loss_scaler import parse_loss_scale

_STAGES = ("run", "epoch", "iter", "train_epoch", "train_iter", "val_epoch", "val_iter")


def import_mmcv_runner():
    """Return the module ``mmcv.runner``, or None if no mmcv that has one is installed."""
    if importlib.util.find_spec("mmcv") is None:
        return None
    try:
        return importlib.import_module("mmcv.runner")
    except Exception:  # an error in it (usually of its torchvision) is raised again when the user imports it
        return None


def _do_nothing(self, runner):
    """Do nothing at this stage."""


_runner = import_mmcv_runner()
_METHODS = dict.fromkeys([side + stage for stage in _STAGES for side in ("before_", "after_")], _do_nothing)
Hook = type("Hook", (), _METHODS) if _runner is None else _runner.Hook


_AVERAGING_WRAPPERS = frozenset(["DistributedDataParallel", "FullyShardedDataParallel"])


def allreduce_grads(params, coalesce=True, bucket_size_mb=-1):
    """Average the gradients of params over all ranks, in place; without a process group, do nothing.

    Args:
        params: in the same order on every rank. Those without a gradient, which must be the same on every rank, are
            skipped.
        coalesce: reduce many gradients in one call.
        bucket_size_mb: the size in MiB of the buckets that are reduced together; by default there is one bucket.

    Raises:
        AmpError: a gradient is sparse.
    """
    grads = [param.grad for param in params if param.requires_grad and param.grad is not None]
    if world_size() == 1:
        return
    if any(grad.is_sparse for grad in grads):
        raise AmpError(
            "allreduce_grads needs dense gradients, and one is sparse. Use sparse=False in the embedding, or wrap the "
            "model in DistributedDataParallel, which reduces both."
        )
    for bucket in _buckets(grads, bucket_size_mb) if coalesce else [[grad] for grad in grads]:
        buckets.flat_dist_call(bucket, dist.all_reduce)


def _buckets(grads, size_mb):
    if size_mb <= 0:
        return [grads] if grads else []
    buckets, size, limit = [], 0, size_mb * 2**20
    for grad in grads:
        if not buckets or size >= limit:
            buckets.append([])
            size = 0
        buckets[-1].append(grad)
        size += grad.numel() * grad.element_size()
    return buckets


def averages_gradients(model):
    """Return whether a wrapper around the model averages gradients in the backward pass."""
    return any(base.__name__ in _AVERAGING_WRAPPERS for base in type(model).__mro__)


def unwrap(model):
    """Return the model inside DataParallel, DistributedDataParallel and similar wrappers."""
    while any("Parallel" in base.__name__ for base in type(model).__mro__) and hasattr(model, "module"):
        model = model.module
    return model


class OptimizerHook(Hook):
    """One step per iteration, in the precision that ``amp.initialize`` gave the optimizer; float32 without it.

    Args:
        grad_clip: arguments of ``torch.nn.utils.clip_grad_norm_``, such as ``dict(max_norm=35, norm_type=2)``, or None.
        detect_anomalous_params: log at every iteration the params that are not in the graph of the loss; slow.
    """

    def __init__(self, grad_clip=None, detect_anomalous_params=False):
        super().__init__()
        if grad_clip is not None and not isinstance(grad_clip, dict):
            raise AmpTypeError(f"grad_clip must be a dict such as dict(max_norm=35), or None, not {grad_clip!r}.")
        self.grad_clip = grad_clip
        self.detect_anomalous_params = detect_anomalous_params

    def after_train_iter(self, runner):
        """Run backward from ``runner.outputs["loss"]``; clip and step if the iteration is the last of its group."""
        optimizer, loss = _optimizer_of(runner), _loss_of(runner)
        position = self._position(runner)
        if position.starts_run:
            self._zero_grad(runner, optimizer)
        if self.detect_anomalous_params:
            in_graph = leaves_of(loss)
            for name, param in runner.model.named_parameters():
                if param.requires_grad and id(param) not in in_graph:
                    _logger(runner).error("%s, of shape %s, is not in the graph of the loss", name, tuple(param.shape))
        with self._scaled_loss(optimizer, loss, position) as scaled_loss:
            scaled_loss.backward()
        if position.is_last:
            self._step(runner, optimizer)

    def clip_grads(self, params):
        """Clip the gradients of ``params`` by their total norm and return it; None if there are no gradients."""
        params = [param for param in params if param.requires_grad and param.grad is not None]
        return torch.nn.utils.clip_grad_norm_(params, **self.grad_clip) if params else None

    def _position(self, runner):
        return NO_ACCUMULATION

    def _zero_grad(self, runner, optimizer):
        optimizer.zero_grad()

    def _scaled_loss(self, optimizer, loss, position):
        session = process_state.current()
        if session is None or not session.enabled or record_of(optimizer) is None:
            return contextlib.nullcontext(_divide_loss(loss, position))
        return _scale_loss(session, optimizer, loss, 0, position)

    def _step(self, runner, optimizer):
        record = record_of(optimizer)
        if record is None:
            self._clip(runner, runner.model.parameters())
        elif not record.skips.is_next_skipped():
            self._clip(runner, amp.master_params(optimizer))
        optimizer.step()

    def _clip(self, runner, params):
        norm = None if self.grad_clip is None else self.clip_grads(params)
        if norm is not None and getattr(runner, "log_buffer", None) is not None:
            runner.log_buffer.update({"grad_norm": float(norm)}, runner.outputs.get("num_samples", 1))


class GradientCumulativeOptimizerHook(OptimizerHook):
    """Gradient accumulation: one step for ``cumulative_iters`` iterations, as if their batches were one.

    Each loss is divided by the number of iterations that its step actually accumulates. The last step of a run, and the
    first step of a run that was resumed in the middle of a group, accumulate fewer. ``kwargs``: as for
    ``OptimizerHook``.
    """

    def __init__(self, cumulative_iters=1, **kwargs):
        super().__init__(**kwargs)
        self._schedule = AccumulationSchedule(cumulative_iters)
        self.cumulative_iters = cumulative_iters

    def _position(self, runner):
        if getattr(runner, "iter", None) is None:
            raise AmpError("Gradient accumulation needs runner.iter, the number of the iteration, counted from 0.")
        total = getattr(runner, "max_iters", None)
        position = self._schedule.advance(runner.iter, total)
        if position.starts_run:
            self._warn(runner, position, total)
        return position

    def _warn(self, runner, position, total):
        length, warning = self.cumulative_iters, _logger(runner).warning
        if position.num_missing:
            warning(
                "Iteration %d is in the middle of %d that are accumulated: the gradients of the %d before it are lost, "
                "and the losses up to the next step are divided by %d.",
                *(runner.iter, length, position.num_missing, position.size),
            )
        if total is not None and total % length:
            warning(
                "%d iterations are not a multiple of %d: the last step accumulates the %d that are left, and their "
                "losses are divided by that number.",
                *(total, length, total % length),
            )
        batch_norm = torch.nn.modules.batchnorm._BatchNorm
        if length > 1 and any(isinstance(module, batch_norm) for module in runner.model.modules()):
            warning("The model has batch norm layers. Their statistics are those of the small batches.")

    def _step(self, runner, optimizer):
        super()._step(runner, optimizer)
        self._zero_grad(runner, optimizer)


class Fp16OptimizerHook(OptimizerHook):
    """Mixed precision: scales the loss, unscales the gradients and checks them for overflow, which skips the step.

    Args:
        grad_clip: as for ``OptimizerHook``.
        coalesce, bucket_size_mb: how gradients are averaged over ranks; see ``allreduce_grads``.
        loss_scale: a number, "dynamic", or a dict of arguments for MMCV's LossScaler or torch's GradScaler.
        distributed: average gradients over the ranks, unless the model's wrapper does so, and skip steps on all ranks.
        opt_level: "O1" as MMCV from torch 1.6 on; "O2" casts weights and keeps float32 master weights, as MMCV before;
            "O4" and "O5" are the same in bfloat16. An optimizer that was passed to ``amp.initialize`` keeps its level.
        **kwargs: those of ``OptimizerHook``.
    """

    def __init__(
        self,
        grad_clip=None,
        coalesce=True,
        bucket_size_mb=-1,
        loss_scale=512.0,
        distributed=True,
        opt_level="O1",
        **kwargs,
    ):
        super().__init__(grad_clip=grad_clip, **kwargs)
        opt_levels.level_named(opt_level)
        self.coalesce = coalesce
        self.bucket_size_mb = bucket_size_mb
        self.distributed = distributed
        self.opt_level = opt_level
        self.loss_scaler = parse_loss_scale(loss_scale)

    def before_run(self, runner):
        """Prepare model and optimizer, and resume the loss scale from ``runner.meta``."""
        optimizer, session = _optimizer_of(runner), session_access.session(self.opt_level)
        if session.enabled and record_of(optimizer) is None:
            self._initialize(session, runner.model, optimizer)
        wrap_fp16_model(runner.model)
        saved = (getattr(runner, "meta", None) or {}).get("fp16", {}).get("loss_scaler")
        if saved is not None and saved.get("mode", "dynamic") == self.loss_scaler.mode:
            self.loss_scaler.load_state_dict(saved)
        self.loss_scaler.scaler.process_group = True if self.distributed and world_size() > 1 else None

    def _initialize(self, session, model, optimizer):
        policy = session_access.policy(session, self.opt_level)
        inner = unwrap(model)
        if policy.casts_model and averages_gradients(model):
            raise AmpError(
                f"The model is wrapped in {type(model).__name__}, whose gradient buffers are float32, and "
                f"{policy.opt_level} casts the weights. Call amp.initialize(model, optimizer, "
                f"opt_level={policy.opt_level!r}) before wrapping it."
            )
        verbosity, session.verbosity = session.verbosity, 0  # MMCV prints no properties of a level
        try:
            amp.initialize(inner, optimizer, opt_level=self.opt_level, verbosity=0)
        finally:
            session.verbosity = verbosity
        record_of(optimizer).configuration.scalers[:] = [self.loss_scaler.scaler]

    def _zero_grad(self, runner, optimizer):
        runner.model.zero_grad()
        optimizer.zero_grad()

    def _scaled_loss(self, optimizer, loss, position):
        session = process_state.current()
        if session is not None and not session.enabled:
            return contextlib.nullcontext(_divide_loss(loss, position))
        if session is None or record_of(optimizer) is None:
            raise AmpError(
                f"{type(self).__name__} has not initialized this optimizer. Call its before_run(runner) before the "
                "first iteration, and after ampcompat.reset()."
            )
        scaler = self.loss_scaler.scaler
        scalers = record_of(optimizer).configuration.scalers
        if scaler not in scalers:
            scalers.append(scaler)
        return _scale_loss(session, optimizer, loss, scalers.index(scaler), position)

    def _step(self, runner, optimizer):
        record = record_of(optimizer)
        if record is not None and self.distributed and world_size() > 1 and not averages_gradients(runner.model):
            if not record.skips.is_next_skipped():
                allreduce_grads(list(amp.master_params(optimizer)), self.coalesce, self.bucket_size_mb)
        super()._step(runner, optimizer)
        if record is not None:
            runner.meta = {} if getattr(runner, "meta", None) is None else runner.meta
            runner.meta.setdefault("fp16", {})["loss_scaler"] = self.loss_scaler.state_dict()


class GradientCumulativeFp16OptimizerHook(GradientCumulativeOptimizerHook, Fp16OptimizerHook):
    """Gradient accumulation in mixed precision, with the arguments of both hooks."""


def _divide_loss(loss, position):
    return loss if position.size == 1 else loss / position.size


def _scale_loss(session, optimizer, loss, loss_id, position):
    """Return the ``scale_loss`` context of an iteration. Overflow is checked in the last iteration of its group."""
    loss = _divide_loss(loss.to(record_of(optimizer).configuration.policy.dtypes.high), position)
    return session.scale_loss(loss, optimizer, loss_id, delay_overflow_check=not position.is_last)


def _optimizer_of(runner):
    optimizer = runner.optimizer
    if isinstance(optimizer, (dict, list, tuple)) or optimizer is None:
        raise AmpTypeError(
            f"An optimizer hook supports one optimizer, but runner.optimizer is a {type(optimizer).__name__}. For "
            "several optimizers, write a hook with amp.initialize and amp.scale_loss."
        )
    return optimizer


def _loss_of(runner):
    outputs = runner.outputs
    loss = outputs.get("loss") if isinstance(outputs, dict) else None
    if not isinstance(loss, torch.Tensor):
        raise AmpTypeError(
            "runner.outputs must be a dict with the loss, a tensor, under 'loss', not "
            f"{sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__}. The model's train_step "
            "returns it."
        )
    return loss


def _logger(runner):
    return getattr(runner, "logger", None) or logging.getLogger(__name__)
