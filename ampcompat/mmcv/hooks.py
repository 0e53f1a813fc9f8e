"""MMCV's optimizer hooks: one iteration's backward pass, clipping and step, at any opt level.

Owns: the four hooks.
Must not touch: mmcv's runner, but for ``meta`` and ``log_buffer``, which hooks write to; weights and gradients, which
the session's adapter and scaler handle.
The surprise: a hook takes any object for a runner that has ``model``, ``optimizer``, ``outputs["loss"]``, and
``iter`` where it accumulates. ``max_iters``, ``meta``, ``log_buffer`` and ``logger`` are used where they are there.
"""

import contextlib
import logging

import torch

from .. import amp
from ..errors import AmpError, AmpTypeError
from ..parts.optimizers import SLOT
from ..runtime import state
from ..runtime.backward import WHERE_EQUAL
from ..tables import opt_levels
from . import opening
from .conversion import wrap_fp16_model
from .foundation import Hook
from .graphs import params_out_of_graph
from .reduction import allreduce_grads, reduces_by_itself, unwrapped, world_size
from .scaling import scaler_of
from .turns import ALONE, Turns


class OptimizerHook(Hook):
    """One step per iteration, in the precision that ``amp.initialize`` gave the optimizer: float32 without it.

    Args:
        grad_clip: arguments of ``torch.nn.utils.clip_grad_norm_``, such as ``dict(max_norm=35, norm_type=2)``, or None.
        detect_anomalous_params: name, at every iteration, the params that the loss does not depend on; slow.
    """

    def __init__(self, grad_clip=None, detect_anomalous_params=False):
        super().__init__()
        if grad_clip is not None and not isinstance(grad_clip, dict):
            raise AmpTypeError(
                "grad_clip must be a dict such as dict(max_norm=35), or None, not {!r}.".format(grad_clip)
            )
        self.grad_clip = grad_clip
        self.detect_anomalous_params = detect_anomalous_params

    def after_train_iter(self, runner):
        """Run backward from ``runner.outputs["loss"]``, and clip and step where a step is due."""
        optimizer, loss = _optimizer_of(runner), _loss_of(runner)
        turn = self._turn(runner)
        if turn.is_fresh:
            self._clear(runner, optimizer)
        if self.detect_anomalous_params:
            for name, param in params_out_of_graph(runner.model, loss):
                _logger(runner).error("%s, of shape %s, is not in the graph of the loss", name, tuple(param.shape))
        with self._scaled(optimizer, loss, turn) as scaled_loss:
            scaled_loss.backward()
        if turn.is_last:
            self._step(runner, optimizer)

    def clip_grads(self, params):
        """Clip the gradients of ``params`` by their joint norm, which is returned; None where there are none."""
        params = [param for param in params if param.requires_grad and param.grad is not None]
        return torch.nn.utils.clip_grad_norm_(params, **self.grad_clip) if params else None

    def _turn(self, runner):
        return ALONE

    def _clear(self, runner, optimizer):
        optimizer.zero_grad()

    def _scaled(self, optimizer, loss, turn):
        session = state.current()
        if session is None or not session.enabled or not hasattr(optimizer, SLOT):
            return contextlib.nullcontext(_shared(loss, turn))
        return _pass(session, optimizer, loss, 0, turn)

    def _step(self, runner, optimizer):
        adapter = getattr(optimizer, SLOT, None)
        if adapter is None:
            self._clip(runner, runner.model.parameters())
        elif not adapter.skips.are_coming():
            self._clip(runner, amp.master_params(optimizer))
        optimizer.step()

    def _clip(self, runner, params):
        norm = None if self.grad_clip is None else self.clip_grads(params)
        if norm is not None and getattr(runner, "log_buffer", None) is not None:
            runner.log_buffer.update({"grad_norm": float(norm)}, runner.outputs.get("num_samples", 1))


class GradientCumulativeOptimizerHook(OptimizerHook):
    """One step for so many iterations, as if their batches were one.

    Each loss is divided by the number of iterations that its step really accumulates: the last step of a run, and the
    first of a run that was resumed in the middle of a group, have fewer.

    Args:
        cumulative_iters: how many.
        **kwargs: those of ``OptimizerHook``.
    """

    def __init__(self, cumulative_iters=1, **kwargs):
        super().__init__(**kwargs)
        self._turns = Turns(cumulative_iters)
        self.cumulative_iters = cumulative_iters

    def _turn(self, runner):
        if getattr(runner, "iter", None) is None:
            raise AmpError("Gradient accumulation needs runner.iter, the number of the iteration, counted from 0.")
        total = getattr(runner, "max_iters", None)
        turn = self._turns.take(runner.iter, total)
        if turn.is_fresh:
            self._explain(runner, turn, total)
        return turn

    def _explain(self, runner, turn, total):
        length, warning = self.cumulative_iters, _logger(runner).warning
        if turn.lost:
            warning(
                "Iteration %d is in the middle of %d that are accumulated: the gradients of the %d before it are gone, "
                "and the losses up to the next step are divided by %d.",
                runner.iter,
                length,
                turn.lost,
                turn.size,
            )
        if total is not None and total % length:
            warning(
                "%d iterations are not a multiple of %d: the last step accumulates the %d that are left, and their "
                "losses are divided by as many.",
                total,
                length,
                total % length,
            )
        norms = [m for m in runner.model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        if norms and length > 1:
            warning("The model has batch norms, whose statistics are of small batches: a large one differs a little.")

    def _step(self, runner, optimizer):
        super()._step(runner, optimizer)
        self._clear(runner, optimizer)


class Fp16OptimizerHook(OptimizerHook):
    """Mixed precision: the loss scaled, the gradients unscaled and checked, steps on overflows skipped.

    Args:
        grad_clip: as for ``OptimizerHook``.
        coalesce, bucket_size_mb: how gradients are averaged over ranks; see ``allreduce_grads``.
        loss_scale: a number, "dynamic", or a dict of arguments for MMCV's LossScaler or torch's GradScaler.
        distributed: average gradients over the ranks, unless the model's wrapper does, and skip steps together.
        opt_level: "O1" as MMCV from torch 1.6 on; "O2" casts weights and keeps float32 masters, as MMCV before; "O4"
            and "O5" the same in bfloat16. An optimizer that has been through ``amp.initialize`` keeps its level.
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
        **kwargs
    ):
        super().__init__(grad_clip=grad_clip, **kwargs)
        opt_levels.level_named(opt_level)
        self.coalesce = coalesce
        self.bucket_size_mb = bucket_size_mb
        self.distributed = distributed
        self.opt_level = opt_level
        self.loss_scaler = scaler_of(loss_scale)

    def before_run(self, runner):
        """Prepare model and optimizer, and resume the loss scale from ``runner.meta``."""
        optimizer, session = _optimizer_of(runner), opening.session(self.opt_level)
        if session.enabled and not hasattr(optimizer, SLOT):
            self._initialize(session, runner.model, optimizer)
        wrap_fp16_model(runner.model)
        saved = (getattr(runner, "meta", None) or {}).get("fp16", {}).get("loss_scaler")
        if saved is not None and saved.get("mode", "dynamic") == self.loss_scaler.mode:
            self.loss_scaler.load_state_dict(saved)
        self.loss_scaler.automaton.process_group = True if self.distributed and world_size() > 1 else None

    def _initialize(self, session, model, optimizer):
        policy = opening.policy(session, self.opt_level)
        inner = unwrapped(model)
        if policy.casts_model and reduces_by_itself(model):
            raise AmpError(
                "The model is wrapped in {}, which has laid out gradients in float32, and {} casts its weights. Call "
                "amp.initialize(model, optimizer, opt_level={!r}) before wrapping it.".format(
                    type(model).__name__, policy.opt_level, policy.opt_level
                )
            )
        verbosity, session.verbosity = session.verbosity, 0  # the level was MMCV's choice; overflows are worth a word
        try:
            amp.initialize(inner, optimizer, opt_level=self.opt_level, verbosity=0)
        finally:
            session.verbosity = verbosity
        session.scalers[:] = [self.loss_scaler.automaton]

    def _clear(self, runner, optimizer):
        runner.model.zero_grad()
        optimizer.zero_grad()

    def _scaled(self, optimizer, loss, turn):
        session = state.current()
        if session is not None and not session.enabled:
            return contextlib.nullcontext(_shared(loss, turn))
        if session is None or not hasattr(optimizer, SLOT):
            raise AmpError(
                "{} has not prepared this optimizer. Call its before_run(runner) before the first iteration, and after "
                "ampcompat.reset().".format(type(self).__name__)
            )
        scaler = self.loss_scaler.automaton
        if scaler not in session.scalers:
            session.scalers.append(scaler)
        return _pass(session, optimizer, loss, session.scalers.index(scaler), turn)

    def _step(self, runner, optimizer):
        adapter = getattr(optimizer, SLOT, None)
        if adapter is not None and self.distributed and world_size() > 1 and not reduces_by_itself(runner.model):
            if not adapter.skips.are_coming():
                allreduce_grads(list(amp.master_params(optimizer)), self.coalesce, self.bucket_size_mb)
        super()._step(runner, optimizer)
        if adapter is not None:
            runner.meta = {} if getattr(runner, "meta", None) is None else runner.meta
            runner.meta.setdefault("fp16", {})["loss_scaler"] = self.loss_scaler.state_dict()


class GradientCumulativeFp16OptimizerHook(GradientCumulativeOptimizerHook, Fp16OptimizerHook):
    """Both: accumulation in mixed precision.

    Args:
        cumulative_iters: as for ``GradientCumulativeOptimizerHook``.
        **kwargs: those of ``Fp16OptimizerHook``.
    """


def _shared(loss, turn):
    return loss if turn.size == 1 else loss / turn.size


def _pass(session, optimizer, loss, loss_id, turn):
    """Return the context of a backward pass whose verdict, and where equal whose unscaling, waits for its group."""
    loss = _shared(loss.to(session.policy.dtypes.high), turn)
    return session.scale_loss(loss, optimizer, loss_id, delay_unscale=False if turn.is_last else WHERE_EQUAL)


def _optimizer_of(runner):
    optimizer = runner.optimizer
    if isinstance(optimizer, (dict, list, tuple)) or optimizer is None:
        raise AmpTypeError(
            "An optimizer hook drives one optimizer, and runner.optimizer is a {}. Drive several in a hook of your "
            "own, with amp.initialize and amp.scale_loss.".format(type(optimizer).__name__)
        )
    return optimizer


def _loss_of(runner):
    outputs = runner.outputs
    loss = outputs.get("loss") if isinstance(outputs, dict) else None
    if not isinstance(loss, torch.Tensor):
        raise AmpTypeError(
            "runner.outputs must be a dict with the loss, a tensor, under 'loss', not {}. The model's train_step "
            "returns it.".format(sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__)
        )
    return loss


def _logger(runner):
    return getattr(runner, "logger", None) or logging.getLogger(__name__)
