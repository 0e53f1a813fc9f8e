"""Faults of the loss scale, of skipped steps, of gradients and masters, for ``mutations.py``.

Each is a line of the package, what is written instead, and the tests that must notice.

The text must occur exactly once in its file. Keep it short: a line that is changed for a good reason needs its row
changed too, and ``test_mutations.py`` says so.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """One fault: ``replacement`` in place of ``text`` in ``file``, and the test files of which one must fail."""

    name: str
    file: str
    text: str
    replacement: str
    tests: str


SCALER, OVERFLOW = "loss_scaling/scaler.py", "loss_scaling/overflow.py"
ADAPTER, STEP = "optimizers/adapter.py", "optimizers/step.py"
PAIRS, MASTERS = "optimizers/master_pairs.py", "optimizers/masters.py"
PASS = "training/backward_pass.py"

AUTOMATON = "specification/test_scale_automaton.py"
ON_DEVICE = "loss_scaling/test_scaler_on_device.py"
BLOCKS = "specification/test_scale_loss.py"
LOSSES = "specification/test_losses_and_optimizers.py"
WRITTEN = "specification/test_written_weights.py"
CLOSING = "training/test_closing.py"
RESUMED = "checkpoints/test_resume_orders.py"
OPTIMIZER = "specification/test_optimizer_calls.py"
DELAYED = "specification/test_delayed_passes.py"
ADDED = "specification/test_added_groups.py"

FAULTS_OF_TRAINING = [
    # -- the loss scale ------------------------------------------------------------------------------------------------
    Fault(
        "scale on the device not clamped",
        SCALER,
        "scale.clamp_(self._floor(), self._max_loss_scale)",
        "scale",
        ON_DEVICE,
    ),
    Fault(
        "growth interval off by one",
        SCALER,
        "_good_steps >= self._scale_seq_len",
        "_good_steps > self._scale_seq_len",
        AUTOMATON,
    ),
    Fault(
        "lower bound of the scale ignored",
        SCALER,
        "max(self._floor(), self._scale * self._backoff_factor)",
        "self._scale * self._backoff_factor",
        AUTOMATON,
    ),
    Fault(
        "upper bound of the scale ignored",
        SCALER,
        "min(self._max_loss_scale, self._scale * self._growth_factor)",
        "self._scale * self._growth_factor",
        AUTOMATON,
    ),
    Fault(
        "first scale above the upper bound",
        SCALER,
        "min(max_loss_scale, max(init_scale, min_loss_scale or 0.0))",
        "max(init_scale, min_loss_scale or 0.0)",
        "specification/test_initialize.py",
    ),
    Fault(
        "backoff and growth factor swapped",
        SCALER,
        "self._scale * self._backoff_factor",
        "self._scale * self._growth_factor",
        AUTOMATON,
    ),
    Fault(
        "hysteresis ignored",
        SCALER,
        "self._overflows_left <= 0",
        "True",
        "diagnostics/test_skip_limit.py loss_scaling/test_hysteresis.py",
    ),
    Fault(
        "hysteresis not renewed by growth",
        SCALER,
        "            self._overflows_left = self._hysteresis\n",
        "",
        "loss_scaling/test_hysteresis.py",
    ),
    Fault("wrong unscale factor", SCALER, "factor = 1.0 / scale", "factor = 0.5 / scale", BLOCKS),
    Fault("overflow flag never read as set", OVERFLOW, "flag.item() != 0.0", "flag.item() > 1.0", BLOCKS),
    Fault(
        "good steps not loaded",
        SCALER,
        'state_dict["loss_scale"], state_dict["unskipped"]',
        'state_dict["loss_scale"], 0',
        RESUMED,
    ),
    # -- skipped steps -------------------------------------------------------------------------------------------------
    Fault(
        "missed skip",
        OVERFLOW,
        "for check in self._last:",
        "for check in self._last[:0]:",
        BLOCKS,
    ),
    Fault(
        "every later step skipped too",
        OVERFLOW,
        "taken, self._next = self._next, []",
        "taken = self._next",
        BLOCKS,
    ),
    Fault(
        "postponed overflow check forgotten",
        OVERFLOW,
        "                check_overflow(scaler, loss_id, adapters)\n",
        "                pass\n",
        "specification/test_nested_blocks.py distributed/test_unsynced.py",
    ),
    Fault("missed skip of a closure", STEP, "            raise _Skip(loss)\n", "            pass\n", BLOCKS),
    Fault(
        "flag of the fused step not given",
        STEP,
        "optimizer.grad_scale, optimizer.found_inf = None, flag",
        "optimizer.grad_scale, optimizer.found_inf = None, flag * 0",
        ON_DEVICE,
    ),
    Fault(
        "ranks reduce the flag by minimum",
        "loss_scaling/process_group.py",
        "ReduceOp.MAX",
        "ReduceOp.MIN",
        "distributed/test_process_group.py",
    ),
    # -- gradients -----------------------------------------------------------------------------------------------------
    Fault("loss not scaled", PASS, "else self.scale)", "else 1.0)", BLOCKS),
    Fault("delay_unscale ignored", PASS, "elif self.delay_unscale or", "elif", BLOCKS),
    Fault(
        "gradients left scaled after an error",
        PASS,
        "            self._unscale(adapters)\n            if has_delayed:",
        "            if has_delayed:",
        "specification/test_data_safety.py",
    ),
    Fault(
        "earlier gradients not scaled",
        ADAPTER,
        "grouped([param.grad for param in held",
        "grouped([param.grad for param in held[:0]",
        "specification/test_plain_backward.py specification/test_accumulation.py",
    ),
    Fault(
        "gradients set aside are lost",
        ADAPTER,
        "add_gradients(*zip(*aside))",
        "pass",
        LOSSES + " specification/test_accumulation.py",
    ),
    Fault(
        "delayed overflow charged to the next loss",
        ADAPTER,
        "loss = self._pending_loss or (scaler, None)",
        "loss = (scaler, None)",
        DELAYED,
    ),
    Fault(
        "shared gradients unscaled twice",
        ADAPTER,
        "self.pending_scale, unscaled)",
        "self.pending_scale, set())",
        DELAYED,
    ),
    Fault("delayed overflow forgotten after an error", PASS, "if has_delayed:", "if False:", DELAYED),
    Fault("masters of added groups unknown", STEP, "adapter.callbacks.group_added(adapter)", "pass", ADDED),
    Fault(
        "dropped scaled gradients held against plain ones",
        "optimizers/plain_backward.py",
        "adapter.forget_untracked(are_replaced)",
        "pass",
        "specification/test_plain_backward.py",
    ),
    Fault(
        "half gradients kept by zero_grad",
        ADAPTER,
        "if set_to_none or pair.model.grad is None:",
        "if set_to_none and pair.model.grad is None:",
        OPTIMIZER + " specification/test_plain_backward.py",
    ),
    Fault(
        "loss not divided by the group's size",
        "training/accumulation.py",
        "share / self.size",
        "share",
        "specification/test_accumulation.py",
    ),
    Fault(
        "only the first tensor checked for inf",
        "tensor_lists.py",
        "        if not all_finite(tensor):",
        "        if tensor is tensors[0] and not all_finite(tensor):",
        "test_tensor_lists.py",
    ),
    # -- master weights ------------------------------------------------------------------------------------------------
    Fault(
        "masters not rounded into the model",
        ADAPTER,
        "            self.mark_masters_synced()\n            self.masters_to_models()\n",
        "            self.mark_masters_synced()\n",
        LOSSES,
    ),
    Fault(
        "gradients of masters kept after a step",
        ADAPTER,
        "                master.grad = None\n",
        "                pass\n",
        OPTIMIZER + " " + LOSSES,
    ),
    Fault(
        "master not refreshed",
        "optimizers/gradient_buffers.py",
        "if not (self.is_new or writes) and sum(map(_VERSION, self.models)) == expected_sum:",
        "if not self.is_new:",
        WRITTEN,
    ),
    Fault(
        "write through data not noted",
        "optimizers/written_params.py",
        "            self._recorded[key] = alive + [weakref.ref(alias)]\n",
        "            pass\n",
        WRITTEN,
    ),
    Fault("master loses its low bits", MASTERS, "== value, master, value)", "== value, value, value)", RESUMED),
    Fault(
        "count of steps cast like the weights",
        MASTERS,
        'if name == "step" or not isinstance',
        "if not isinstance",
        OPTIMIZER,
    ),
    Fault(
        "masters stay in the optimizer after the session",
        PAIRS,
        '                    group["params"][index] = pair.model\n',
        "",
        CLOSING,
    ),
]
