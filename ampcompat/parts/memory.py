"""Measure the bytes that a training step holds, by kind.

Owns: ``MemoryMeter``: which storages belong to which kind, and when to look.
Must not touch: models, optimizers, values. It looks, and leaves no hook behind.
The surprise: it sees every operation while it measures, so a measured step may take a few times as long; time others.
On torch before 2.0 it cannot, and counts the kinds that are there at the moments it is told of.

What a storage counts as, each one once and the first that fits: parameters, masters, gradients, optimizer state,
buffers of the model, casts of weights, what autograd saved (activations), and the rest of what was made since the
forward pass began (temporaries). What lived before and is none of these, such as the batch, is not counted.
"""

import weakref
from contextlib import ExitStack

import torch

from ..tables import torch_facts
from .allocations import Allocations
from .memory_kinds import NAMES, Kinds, Reading
from .optimizers import SLOT
from .saved import RESOLUTION, SavedTensors
from .storages import StorageTable, sizes_in, storages_in

_STATIC = ("parameters", "masters", "optimizer", "model_buffers")


class MemoryMeter:
    """Measures what happens between ``begin`` and ``end``, which are called on the thread that trains.

    Until ``end`` two contexts of torch are open: hooks on what autograd saves (torch 1.10) and a mode below autograd
    (2.0). Contexts that the training itself opens must be closed in the order that contexts are closed in: around
    what is measured, or inside it.
    """

    def __init__(self):
        self._models = weakref.WeakSet()
        self._optimizers = []  # weak references: some optimizers have no hash
        self._is_open = False

    def watch(self, models=(), optimizers=()):
        """Count these too; they are held weakly."""
        self._models.update(models)
        known = [reference() for reference in self._optimizers]
        new = [each for each in optimizers if all(each is not other for other in known)]
        self._optimizers += [weakref.ref(each) for each in new]

    def watched(self):
        """Return (models, optimizers): those that still live."""
        optimizers = [reference() for reference in self._optimizers]
        return list(self._models), [optimizer for optimizer in optimizers if optimizer is not None]

    def begin(self):
        """Start to measure, before the forward pass of a step."""
        self._is_open = True
        self._has_begun = self._is_stepping = False
        self._reading = Reading()
        self._undecided = None  # references to what counted as temporary at the peak
        self._inputs = StorageTable()  # asked where there are no modes, and so no word on what was there before
        has_modes = torch_facts.has_dispatch_modes()
        self._allocations = Allocations(self.look, self._is_weight) if has_modes else None
        self._saved = SavedTensors(None if has_modes else self.look) if torch_facts.takes_saved_tensor_hooks() else None
        self._refresh()
        self.look()
        with ExitStack() as in_force:
            for model in self._models:
                in_force.callback(model.register_forward_pre_hook(_FirstForward(self)).remove)
            for context in (self._saved, self._allocations):
                if context is not None:
                    in_force.enter_context(context)
            self._in_force = in_force.pop_all()

    def end(self):
        """Stop, and return the ``Reading``."""
        self._is_open = False
        self._in_force.close()
        self.moment()
        reading = self._reading
        # What autograd still keeps keeps its account, and nothing else of this step.
        self._reading = self._undecided = self._saved = self._allocations = self._in_force = self._inputs = None
        return reading

    @property
    def is_open(self):
        """Whether a step is being measured."""
        return self._is_open

    def before_forward(self, model, inputs):
        """Hear that a model begins to compute: if it trains, and is the first to, the step begins here.

        What was made since the last step is the next batch, or an evaluation.
        """
        if self._has_begun or not self._is_open or not (model.training and torch.is_grad_enabled()):
            return
        self._has_begun = True
        for key, size, storage in storages_in(inputs):
            self._inputs.add(key, size, storage)
        if self._allocations is not None:
            self._allocations.forget()
        self._reading = Reading()
        self._refresh()
        self.look()

    # -- when to look --------------------------------------------------------------------------------------------------

    def before_step(self):
        """Hear that an optimizer begins to step: masters and gradients are all there, and state may still appear."""
        self.moment()
        self._is_stepping = True

    def after_step(self):
        """Hear that it has ended."""
        self._refresh()
        self.moment()
        self._is_stepping = False

    def moment(self):
        """Look now, at the allocator of CUDA too."""
        self.look()
        self._ask_cuda()

    def look(self):
        """Count what is held now, and keep it if it is the most so far."""
        if self._reading is None:  # a context of the user's that outlived the step has kept ours in force
            return
        if self._is_stepping:
            self._refresh()
        gradients = sizes_in([param.grad for param in self._reached] + [chunk.memory() for chunk in self._chunks])
        kinds, rest = self._count(gradients)
        reading, total = self._reading, kinds.total
        reading.most = reading.most.greatest(kinds)
        if total > reading.at_peak.total:
            reading.at_peak = kinds
            self._undecided = self._allocations and self._allocations.references(rest)
        elif self._undecided:
            self._decide(gradients)
        if self._allocations is not None:
            elsewhere = total - self._allocations.bound
            self._allocations.limit = reading.at_peak.total * (1 + RESOLUTION) - elsewhere

    def _decide(self, gradients):
        """Count at the peak as gradients what had just been made then, and has become some param's since."""
        late = [key for key in gradients if self._undecided.pop(key, None) is not None]
        size = sum(gradients[key] for key in late)
        reading = self._reading
        reading.at_peak = reading.at_peak.plus("temporaries", -size).plus("gradients", size)
        reading.most = reading.most.greatest(reading.at_peak)

    # -- what counts as what -------------------------------------------------------------------------------------------

    def _refresh(self):
        """Look anew for what changes in ``step`` alone."""
        self._reached = []  # tensors that may have gradients
        self._chunks = []  # what may keep memory for gradients
        kinds = dict.fromkeys(_STATIC, 0)
        self._owned = {}
        for kind, tensors in self._static_tensors():
            for key, size in sizes_in(tensors).items():
                if key not in self._owned:
                    self._owned[key] = kind
                    kinds[kind] += size
        self._static = kinds

    def _static_tensors(self):
        models, optimizers = self.watched()
        params = [param for model in models for param in model.parameters()]
        adapters = [getattr(optimizer, SLOT) for optimizer in optimizers if hasattr(optimizer, SLOT)]
        masters = [pair.master for adapter in adapters for pair in adapter.pairs()]
        self._chunks = [chunk for adapter in adapters for chunk in adapter._chunks]
        grouped = [param for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]]
        self._reached = list({id(param): param for param in params + masters + grouped}.values())
        yield "parameters", params
        yield "masters", masters
        yield "parameters", grouped  # of models that nobody named
        yield "optimizer", [dict(optimizer.state) for optimizer in optimizers]
        yield "model_buffers", [buffer for model in models for buffer in model.buffers()]

    def _count(self, gradients):
        """Return the ``Kinds``, and the keys of the temporaries."""
        seen = dict(self._owned)
        kinds = dict.fromkeys(NAMES)
        kinds.update(self._static)
        kinds["gradients"] = _claim(seen, gradients)
        made = self._allocations and self._allocations.living()
        if made is not None:
            kinds["casts"] = _claim(seen, self._allocations.weight_casts())
        if self._saved is not None:
            saved = self._saved.sizes()
            known = {key: saved[key] for key in saved if (key not in self._inputs if made is None else key in made)}
            kinds["activations"] = _claim(seen, known)
        rest = () if made is None else [key for key in made if key not in seen]
        if made is not None:
            kinds["temporaries"] = _claim(seen, made)
        return Kinds(**kinds), rest

    def _is_weight(self, key):
        return self._owned.get(key) == "parameters"

    def _ask_cuda(self):
        devices = {param.device for param in self._reached if param.device.type == "cuda"}
        if not devices:
            return
        reading = self._reading
        reading.cuda_allocated, reading.cuda_reserved, fragmentation = allocator_of(devices)
        if fragmentation is not None:
            reading.fragmentation = max(reading.fragmentation or 0.0, fragmentation)


class _FirstForward:
    """The hook on a model, which may be copied and pickled meanwhile: a copy listens to nothing."""

    def __init__(self, meter=None):
        self._meter = meter

    def __call__(self, model, inputs):
        if self._meter is not None:
            self._meter.before_forward(model, inputs)

    def __reduce__(self):
        return _FirstForward, ()


def allocator_of(devices):
    """Return what CUDA's allocator says of some devices: (most allocated, most reserved, fragmentation now or None)."""
    cuda = torch.cuda
    most_reserved = getattr(cuda, "max_memory_reserved", None) or cuda.max_memory_cached  # its name before torch 1.4
    allocated = sum(cuda.max_memory_allocated(device) for device in devices)
    reserved = sum(most_reserved(device) for device in devices)
    stats = [cuda.memory_stats(device) for device in devices] if hasattr(cuda, "memory_stats") else [{}]
    held = sum(each.get("reserved_bytes.all.current", 0) for each in stats)
    between = [each.get("inactive_split_bytes.all.current") for each in stats]
    return allocated, reserved, sum(between) / held if held and None not in between else None


def _claim(seen, sizes):
    """Return the bytes of the storages that no kind has claimed before, and claim them."""
    new = {key: size for key, size in sizes.items() if key not in seen}
    seen.update(new)
    return sum(new.values())
