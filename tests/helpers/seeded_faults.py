"""Faults of the loss scale, of skipped steps, of gradients and masters, for ``mutations.py``.

Each names a function of the package, code in it, what is written instead, and the tests that must notice. A function is
found by its qualified name in whatever file it is; code is compared without its layout.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """One fault: ``replacement`` in place of ``code`` within ``function``, and the test files of which one must fail.

    ``function`` is the end of a dotted name: ``Class.method``, ``function``, ``module.function`` or ``module``.
    """

    name: str
    function: str
    code: str
    replacement: str
    tests: str


AUTOMATON = "specification/test_scale_automaton.py"
ON_DEVICE = "loss_scaling/test_both_automata.py"
BLOCKS = "specification/test_scale_loss.py"
STORED = "optimizers/test_stored_masters.py"
LOSSES = "specification/test_losses_and_optimizers.py"
WRITTEN = "specification/test_written_weights.py"
CLOSING = "session/test_closing.py"
RESUMED = "checkpoints/test_resume_orders.py"
OPTIMIZER = "specification/test_optimizer_calls.py"
DELAYED = "specification/test_delayed_passes.py"
ADDED = "specification/test_added_groups.py"

# fmt: off
FAULTS_OF_TRAINING = [
    # -- the loss scale ------------------------------------------------------------------------------------------------
    Fault("scale on the device not clamped", "LossScaler._update_on_device",
          "scale.clamp_(self._floor(), self._max_loss_scale)", "scale", ON_DEVICE),
    Fault("growth interval off by one", "LossScaler.advance", "_good_steps >= self._scale_seq_len",
          "_good_steps > self._scale_seq_len", AUTOMATON),
    Fault("lower bound of the scale ignored", "LossScaler.advance",
          "max(self._floor(), self._scale * self.backoff_factor)", "self._scale * self.backoff_factor", AUTOMATON),
    Fault("upper bound of the scale ignored", "LossScaler.advance",
          "min(self._max_loss_scale, self._scale * self.growth_factor)", "self._scale * self.growth_factor", AUTOMATON),
    Fault("first scale above the upper bound", "loss_scaler.LossScaler.__init__",
          "min(max_loss_scale, max(init_scale, min_loss_scale or 0.0))", "max(init_scale, min_loss_scale or 0.0)",
          "loss_scaling/test_both_automata.py"),
    Fault("backoff and growth factor swapped", "LossScaler.advance", "self._scale * self.backoff_factor",
          "self._scale * self.growth_factor", AUTOMATON),
    Fault("hysteresis ignored", "LossScaler.advance", "self._overflows_left <= 0", "True",
          "skipped_steps/test_skip_limit.py loss_scaling/test_hysteresis.py"),
    Fault("hysteresis not renewed by growth", "LossScaler.advance", "self._overflows_left = self._hysteresis", "",
          "loss_scaling/test_hysteresis.py"),
    Fault("wrong unscale factor", "LossScaler._unscale_in_place", "factor = 1.0 / scale", "factor = 0.5 / scale",
          BLOCKS),
    Fault("overflow flag never read as set", "OverflowCheck.overflowed", "flag.item() != 0.0", "flag.item() > 1.0",
          BLOCKS),
    Fault("good steps not loaded", "loss_scaler.LossScaler.load_state_dict",
          'self.good_steps = state_dict["unskipped"]', "self.good_steps = 0", RESUMED),
    # -- skipped steps -------------------------------------------------------------------------------------------------
    Fault("missed skip", "StepSkips.was_last_skipped", "for check in self._last:", "for check in self._last[:0]:",
          BLOCKS),
    Fault("every later step skipped too", "StepSkips.take",
          "self._next, self._last, self._are_cleared = [], self._next, False",
          "self._last, self._are_cleared = list(self._next), False", BLOCKS),
    Fault("postponed overflow check forgotten", "StepSkips._check_deferred", "check_overflow(scaler, loss_id, records)",
          "pass", "distributed/test_unsynced.py"),
    Fault("missed skip of a closure", "_watched.watched", "raise _Skip(loss)", "pass", BLOCKS),
    Fault("flag of the fused step not given", "step_or_skip._step_with",
          "optimizer.grad_scale, optimizer.found_inf = None, flag",
          "optimizer.grad_scale, optimizer.found_inf = None, flag * 0", ON_DEVICE),
    Fault("ranks reduce the flag by minimum", "_max_over_ranks", "ReduceOp.MAX", "ReduceOp.MIN",
          "distributed/test_process_group.py"),
    # -- gradients -----------------------------------------------------------------------------------------------------
    Fault("loss not scaled", "BackwardPass.__enter__", "else self.scale)", "else 1.0)", BLOCKS),
    Fault("delay_unscale ignored", "BackwardPass.__exit__", "if self.delay_unscale or", "if", BLOCKS),
    Fault("gradients left scaled after an error", "BackwardPass._unscale_unchecked",
          "self._unscale(records)\nif has_delayed:", "if has_delayed:", "specification/test_data_safety.py"),
    Fault("earlier gradients not scaled", "HeldGradients.enter",
          "tensor_lists.multiply_(tensor_lists.grouped(rest), scale)", "pass",
          "specification/test_gradient_states.py"),
    Fault("gradients set aside are lost", "HeldGradients._end_pass", "add_gradients(*zip(*aside))", "pass",
          LOSSES),
    Fault("delayed overflow charged to the next loss", "HeldGradients.unscale_delayed",
          "loss = loss or NumberedLoss(scaler, None)", "loss = NumberedLoss(scaler, None)", DELAYED),
    Fault("shared gradients unscaled twice", "HeldGradients.unscale_delayed", "delayed_scale, unscaled)",
          "delayed_scale, set())", DELAYED),
    Fault("delayed overflow forgotten after an error", "BackwardPass._unscale_unchecked", "if has_delayed:",
          "if False:", DELAYED),
    Fault("masters of added groups unknown", "_add_param_group", "record.session.add_masters(record, pairs)", "pass",
          ADDED),
    Fault("dropped scaled gradients held against plain ones", "HeldGradients._move_plain_gradients",
          "self._forget_others(are_replaced)", "pass", "specification/test_plain_backward.py"),
    Fault("half gradients kept by zero_grad", "HeldGradients.clear", "self._masters.clear_half_gradients(set_to_none)",
          "pass", OPTIMIZER + " specification/test_plain_backward.py"),
    Fault("only the first tensor checked for inf", "check_and_scale_", "if not all_finite(tensor):",
          "if tensor is tensors[0] and not all_finite(tensor):", "test_tensor_lists.py"),
    # -- master weights ------------------------------------------------------------------------------------------------
    Fault("masters not rounded into the model", "OptimizerMasters.finish_step", "self.round_into_models()", "pass",
          LOSSES),
    Fault("written half params not taken", "MasterChunk._written",
          "if is_unmoved and not (self.is_new or writes.noted):",
          "if is_unmoved or not self.is_new:", WRITTEN),
    Fault("written masters not shown", "_with_shown_masters", "masters.show_written()", "pass", WRITTEN),
    Fault("a changed gradient not compared", "ShownGradient._changes",
          "return is_changed | is_cleared, self._unscaled(wide)", "return None",
          "specification/test_half_gradients.py"),
    Fault("a changed gradient not found in param_groups", "grad_of_half_params.watch", "type(master) is torch.Tensor",
          "False", "specification/test_half_gradients.py"),
    Fault("reading a stored master's value hides later changes of its gradient", "RemainderChunk.restore",
          "self._owner.shown.watch(zip(self.models, self.masters))", "pass", "specification/test_half_gradients.py"),
    Fault("gradients shown unscaled in a block", "HeldGradients.shown", "1.0 if scale is None else scale", "1.0",
          "specification/test_half_gradients.py"),
    Fault("what a script adds in a block not checked", "HeldGradients.leave",
          "scaler.unscale_(tensor_lists.grouped(self._shown.take_changes(self._masters.pairs())), 1.0)",
          "self.take_changes()", "specification/test_half_gradients.py"),
    Fault("masters not rounded after a method of the optimizer", "run_method", "record.masters.show_all()", "pass",
          "specification/test_own_methods.py"),
    Fault("groups that a script rebuilt not followed", "HeldGradients.prepare_step", "self._record.follow_groups()",
          "pass", "specification/test_own_methods.py"),
    Fault("data of a master without what was written to its half param", "MasterChunk.follow_writes",
          "self._take([index])", "pass", WRITTEN),
    Fault("data of a half param without what was written to its master", "MasterChunk.follow_writes",
          "self._show([index])", "pass", WRITTEN),
    Fault("write through data not noted", "WrittenMemory.note", "self.noted.update(keys)", "pass",
          WRITTEN),
    Fault("master loses its low bits", "kept_where_equal", "== value, master, value)", "== value, value, value)",
          RESUMED),
    Fault("count of steps cast like the weights", "recast", 'if name == "step" or not isinstance', "if not isinstance",
          OPTIMIZER),
    Fault("ties between two bfloat16 values not told apart", "join", "ties.add_to(piece, first + start)", "pass",
          "optimizers/test_remainders.py"),
    Fault("a weight is written before its stored master is restored", "SessionMasters._restore",
          "restore(entry.master)", "pass", WRITTEN),
    Fault("masters are stored although a script keeps an alias", "SessionMasters.may_store", "param in self.writes or",
          "False or", STORED),
    Fault("each chunk counts a step", "_Counts.restore", "vars(optimizer).update(self._attributes)", "pass",
          "optimizers/test_chunked_step.py"),
    Fault("masters stay in the optimizer after the session", "OptimizerMasters._return_params",
          'group["params"][index] = pair.model', "pass", CLOSING),
    # -- sessions ------------------------------------------------------------------------------------------------------
    Fault("an optimizer of replaced params trains nothing in silence", "replaced_params.check", "if place is None:",
          "if False:", "session/test_replaced_params.py"),
    Fault("a thread block that was left open within another stays open", "thread_blocks._end",
          "while outermost in blocks:", "if outermost in blocks:", "session/test_interrupts.py"),
]
# fmt: on
