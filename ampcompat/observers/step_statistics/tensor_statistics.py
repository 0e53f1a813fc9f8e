"""``TensorStatistics``: the observer of ``run --stats-every``: statistics of tensors in every n-th optimizer step.

Everything is computed on the device, in hooks that exist in these steps only, and read once at the end of the step.
"""

import atexit
import csv
import functools
import os
import weakref

import torch

from ...engine.optimizers.optimizer_record import record_of
from ...support.observer_interface import Observer
from ...support.torch_compat.thread_context import world_size
from ...support.torch_compat.torch_names import dtype_name
from ..activations import ActivationHooks
from ..values import SUMMARY, low_dtype, read_together, summary

IS_BOOKKEEPING = True  # see support/script_frames.py

ACTIVATION, GRADIENT, WEIGHT = "activation", "gradient", "weight"


#: The columns of a row. ``model``: its number in the order of ``amp.initialize``, None for a param that is in no model;
#: ``tensor``: "output", "input", or the param's own name; ``call``: the index of the module's output in the step.
COLUMNS = ("step", "kind", "model", "module", "tensor", "call", "dtype", "level_dtype", "loss_scale", "size") + SUMMARY
#: Those that are computed on the device.
NUMBERS = SUMMARY + ("loss_scale",)


class TensorStatistics(Observer):
    """Measures module outputs, gradients and weights in the optimizer steps 0, n, 2n, …

    Args:
        every: n.
        path: the CSV file.
    """

    def __init__(self, every, path):
        self._every, self._file = every, CsvFile(path)
        self._models = []  # weak references
        self._steps = weakref.WeakKeyDictionary()  # record -> the number of its steps
        self._scales = weakref.WeakKeyDictionary()  # record -> the loss scale of its last backward pass
        self._hooks = None
        self._pass = _none  # a weak reference to the pass that is going on
        self._rows, self._calls = [], {}  # rows without numbers, each with its numbers on the device
        self._low = torch.float32
        self._is_closed = False

    # -- callbacks of the session --------------------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        if not self._models:
            atexit.register(self._close)
        self._low = low_dtype(session.policy)
        self._models += [weakref.ref(model) for model in models]
        for optimizer in optimizers:
            self._steps.setdefault(record_of(optimizer), 0)
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        self._hook_if_due()

    def before_backward(self, backward):
        """Note the pass, in which gradients of outputs are measured."""
        self._pass = weakref.ref(backward)

    def after_backward(self, backward):
        """Take the measurements of the hooks, if the pass belongs to a measured step."""
        self._pass = _none
        for record in backward.records:
            self._scales[record] = backward.scale
        if self._hooks is None:
            return
        if any([self._is_due(record) for record in backward.records]):
            for entry in self._hooks.outputs:
                self._add_entry(ACTIVATION, entry, 1.0, backward.scale)
            for entry in self._hooks.gradients:
                self._add_entry(GRADIENT, entry, backward.scale, backward.scale)
        self._hooks.outputs.clear()
        self._hooks.gradients.clear()

    def before_step(self, record):
        if not self._is_due(record) or self._is_closed:
            return
        names, scale = self._param_names(), self._scales.get(record, 1.0)
        pairs = [pair for pair in record.pairs()] + [(param, param) for param in record.unpaired_params()]
        for number, (param, master) in enumerate(pairs):
            model, module, name = names.get(id(param), (None, type(record.optimizer).__name__, f"param {number}"))
            self._add(WEIGHT, model, module, name, param, 1.0, scale)
            if master.grad is not None:
                self._add(GRADIENT, model, module, name, master.grad, scale, scale)

    def after_step(self, record):
        """Read and write the measurements; start or end measuring."""
        step = self._steps.get(record, 0)
        self._steps[record] = step + 1
        rows, self._rows, self._calls = self._rows, [], {}
        if rows:
            numbers = read_together([values for _, values in rows])
            self._file.write(
                [dict(row, step=step, **dict(zip(NUMBERS, found))) for (row, _), found in zip(rows, numbers)]
            )
        self._hook_if_due()

    def closed(self, session):
        self._close()

    def _close(self):
        self._is_closed = True
        atexit.unregister(self._close)
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        self._file.close()

    # -- a step --------------------------------------------------------------------------------------------------------

    def _is_due(self, record):
        return self._steps.get(record, 0) % self._every == 0

    def _hook_if_due(self):
        """Register or remove the hooks. With several optimizers, a step begins when the first of them steps."""
        done = max(self._steps.values(), default=0)
        waiting = [count for count in self._steps.values() if count == done - 1]
        is_due = not self._is_closed and any(count % self._every == 0 for count in [done] + waiting)
        if is_due and self._hooks is None:
            measure = functools.partial(summary, dtype=self._low)
            self._hooks = ActivationHooks(lambda: self._pass() is not None, measure)
            for number, model in enumerate(self._models):
                if model() is not None:
                    self._hooks.register(model(), functools.partial(_numbered, number))
        elif not is_due and self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    def _param_names(self):
        """Return ``{id(param): (model, module, name)}``; for a shared param, the first one."""
        found = {}
        for number, model in enumerate(self._models):
            for name, param in model().named_parameters() if model() is not None else ():
                module, _, own = name.rpartition(".")
                found.setdefault(id(param), (number, module, own))
        return found

    def _add_entry(self, kind, entry, divisor, scale):
        number, module, is_input = entry.name
        key = kind, entry.name
        call = self._calls[key] = self._calls.get(key, -1) + 1
        tensor = "input" if is_input else "output"
        self._add_row((kind, number, module, tensor, call), entry.dtype, entry.size, entry.measured, divisor, scale)

    def _add(self, kind, model, module, name, tensor, factor, scale):
        values = summary(tensor, self._low, factor)
        if values is not None:
            self._add_row((kind, model, module, name, 0), tensor.dtype, tensor.numel(), values, 1.0, scale)

    def _add_row(self, place, dtype, size, values, divisor, scale):
        """Add a row whose largest and mean values are divided by ``divisor``."""
        row = dict(zip(COLUMNS[1:], place), dtype=dtype_name(dtype), level_dtype=dtype_name(self._low), size=size)
        values = values.to(torch.float32 if values.device.type == "mps" else torch.float64)
        scale, divisor = [torch.as_tensor(each, dtype=values.dtype, device=values.device) for each in (scale, divisor)]
        self._rows.append((row, torch.cat([values[:2] / divisor, values[2:], scale.reshape(1)])))


def _none():
    return None


def _numbered(number, name, is_input=False):
    return number, name, is_input


class CsvFile:
    """Rows of statistics as CSV. The file is created at the first row, since the ranks are only known then.

    Args:
        path: the file; with several ranks, the rank is put before the extension: ``stats.rank1.csv``.
    """

    def __init__(self, path):
        self._path = path
        self._file = None

    def write(self, rows):
        """Append rows, dicts of ``COLUMNS``."""
        if self._file is None:
            root, ending = os.path.splitext(self._path)
            rank = f".rank{torch.distributed.get_rank()}" if world_size() > 1 else ""
            self._file = open(f"{root}{rank}{ending}", "w", encoding="utf-8", newline="")
            self._rows = csv.DictWriter(self._file, COLUMNS, lineterminator="\n")
            self._rows.writeheader()
        for row in rows:
            self._rows.writerow(
                {name: f"{value:.6g}" if type(value) is float else value for name, value in row.items()}
            )
        self._file.flush()

    def close(self):
        """Close the file."""
        if self._file is not None:
            self._file.close()
