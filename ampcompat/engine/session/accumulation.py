"""Gradient accumulation: several iterations (a group) share one optimizer step.

A group has one overflow check, at its end. So the loss scale is constant within a group, an overflow in any iteration
skips the group's step, and the loss scale grows after a number of steps, as it would with the large batch.

``steps`` = 4, ``total`` = 10 (each row is a group: what is divided by its length, and then steps):

    0 1 2 3     4 5 6 7     8 9             started at 6:   6 7     8 9
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Iterator, Optional, Sequence, Union

import torch

from ...errors import AmpError, AmpTypeError, AmpValueError, hide_internal_frames
from ...support.torch_compat.thread_blocks import grad_enabled
from . import process_state
from .argument_checks import check_loss, checked_count, is_optimizer
from .scale_loss import WHERE_EQUAL


@hide_internal_frames
def accumulate(
    optimizers: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]],
    steps: int,
    total: Optional[int] = None,
    start: int = 0,
) -> Accumulation:
    """Return an ``Accumulation``: several iterations share one optimizer step, as one large batch.

        accumulation = amp.accumulate(optimizer, steps=4, total=len(loader))
        for input, target in loader:
            with accumulation.no_sync(model):  # under DistributedDataParallel only; does nothing for other models
                loss = criterion(model(input), target)
                with accumulation.scale_loss(loss) as scaled_loss:
                    scaled_loss.backward()
            if accumulation.is_due():
                clip_grad_norm_(amp.master_params(optimizer), 1.0)
            if accumulation.step():  # steps and clears the gradients when it is due
                scheduler.step()

    Each loss is divided by the number of iterations that share its step: with 102 iterations and ``steps=4`` the last
    two losses are divided by 2. Counting restarts after ``total`` iterations, so ``total`` is the length of an epoch,
    or of the whole training.

    Args:
        optimizers: an optimizer or a list of them.
        steps: iterations per optimizer step.
        total: the number of iterations, or None if unknown; call ``accumulation.finish()`` at the end then.
        start: ``accumulation.iteration`` of a run to resume. Gradients accumulated before the interruption are lost;
            the losses up to the next step are divided by the number of iterations that remain until it.

    Raises:
        TypeError, RuntimeError: an invalid argument; the message names what was expected.
    """
    return Accumulation(optimizers, steps, total, start)


class Accumulation:
    """Divides losses by the group's size, scales them, and steps at the end of a group; see ``accumulate``."""

    def __init__(self, optimizers, steps, total, start):
        self.optimizers = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
        self.steps = checked_count("amp.accumulate expected steps to be", steps)
        self.total = None if total is None else checked_count("amp.accumulate expected total to be", total)
        self.iteration = checked_count("amp.accumulate expected start to be", start, 0)
        for optimizer in self.optimizers:
            if not is_optimizer(optimizer):
                raise AmpTypeError(
                    f"amp.accumulate expected an optimizer or a list of them, not {type(optimizer).__name__}."
                )
        if self.total is not None and self.iteration > self.total:
            raise AmpValueError(f"amp.accumulate got start={self.iteration} beyond total={self.total}.")
        if self.iteration == self.total:
            self.iteration = 0
        self._first = self.iteration  # of the current group
        self._has_unchecked = False  # passes of this group have not been checked for overflow
        self._is_local = False  # gradients of this group have not been all-reduced (no_sync)

    def __repr__(self):
        return f"Accumulation(steps={self.steps}, total={self.total}, iteration={self.iteration})"

    # -- the current iteration within its group ------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of iterations in the current group: what its losses are divided by."""
        return self._group_end() - self._first

    def is_due(self) -> bool:
        """Return whether the current iteration, which ``step()`` ends, is the last of its group."""
        return self.iteration + 1 == self._group_end()

    def _group_end(self):
        return group_bounds(self.iteration, self.steps, self.total)[1]

    # -- one iteration -------------------------------------------------------------------------------------------------

    @contextmanager
    def scale_loss(self, loss: torch.Tensor, loss_id: int = 0) -> Iterator[torch.Tensor]:
        """Return a context that yields the loss, divided by the group's ``size`` and scaled; see ``amp.scale_loss``.

        Args:
            loss: the mean over this iteration's batch.
            loss_id: which of the ``num_losses`` scalers.
        """
        check_loss(loss)
        session = process_state.initialized_session("amp.accumulate")
        configuration = session.configuration_of(self.optimizers)
        share = loss.to(configuration.policy.dtypes.high) if session.enabled else loss
        # With several scalers each pass is checked by itself: in the sum one could not see which loss overflowed.
        delays = session.enabled and len(configuration.scalers) == 1 and not self.is_due()
        options = {"delay_unscale": WHERE_EQUAL} if delays else {}
        with session.scale_loss(share / self.size, self.optimizers, loss_id, **options) as scaled_loss:
            yield scaled_loss
        self._has_unchecked = delays

    def no_sync(self, *models: torch.nn.Module) -> ExitStack:
        """Return a context for forward and backward in which gradients are all-reduced only when a step is due.

        Args:
            models: DistributedDataParallel of torch or of ``apex.parallel``, or models that went through
                ``fully_shard``. Other modules are ignored.
        """
        contexts = ExitStack()
        for model in models if not self.is_due() else ():
            if hasattr(model, "no_sync"):
                contexts.enter_context(model.no_sync())
                self._is_local = True
            elif hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(False)
                contexts.callback(model.set_requires_gradient_sync, True)
                self._is_local = True
        return contexts

    def step(self) -> bool:
        """End an iteration; if it was due, step the optimizers and clear their gradients.

        Returns:
            Whether it was due. ``amp.step_was_skipped(optimizer)`` returns whether the step was skipped because of an
            overflow.
        """
        if not self.is_due():
            self.iteration += 1
            return False
        self.iteration = 0 if self.iteration + 1 == self.total else self.iteration + 1
        self._finish()
        return True

    def finish(self) -> bool:
        """Step on an incomplete group, at the end of the data, if ``total`` was not given.

        Returns:
            Whether there was an incomplete group.

        Raises:
            AmpError: gradients of the group have not been all-reduced, because of ``no_sync``. Pass ``total`` then.
        """
        done = self.iteration - self._first
        if done == 0:
            return False
        self._check_exchanged()
        self._check_remaining()
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        params = {id(param): param for group in groups for param in group["params"]}  # optimizers may share some
        with grad_enabled(False):
            for param in params.values():
                if param.grad is not None:
                    param.grad.mul_(self.size / done)
        self.iteration = 0
        self._finish()
        return True

    def _finish(self):
        self._check_remaining()
        self._first, self._is_local = self.iteration, False
        for optimizer in self.optimizers:
            optimizer.step()
        for optimizer in self.optimizers:  # after every step, as optimizers may share params
            optimizer.zero_grad()

    def _check_remaining(self):
        """Unscale and check the group's gradients, if its last iteration had no backward pass that did."""
        if self._has_unchecked:
            self._check_exchanged()
            self._has_unchecked = False
            with process_state.initialized_session("amp.accumulate").scale_loss(torch.zeros(()), self.optimizers):
                pass

    def _check_exchanged(self):
        if self._is_local:
            raise AmpError(
                "amp.accumulate: a group of iterations ends without the backward pass in which ranks exchange the "
                "gradients that no_sync kept. Pass total, the number of iterations, and call backward in each group's "
                "last one."
            )


def group_bounds(iteration, steps, total=None):
    """Return ``(first, end)``: iterations ``first`` to ``end - 1`` share an optimizer step with ``iteration``.

    Groups begin at multiples of ``steps``, whether or not a run was resumed, so that schedules stay the same. ``total``
    ends the last group.
    """
    first = iteration - iteration % steps
    end = first + steps
    return first, end if total is None else min(end, total)
