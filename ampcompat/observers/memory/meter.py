"""Measure the memory of a training step, by kind.

Each storage counts once, as the first kind that fits: parameters, masters, gradients, optimizer state, model buffers,
    cached half copies of weights, tensors saved by autograd (activations), and other tensors created since the forward
    pass began (temporaries). Other tensors created earlier, such as the batch, are not counted.
"""

import weakref
from contextlib import ExitStack

import torch

from ...engine.optimizers.optimizer_record import record_of
from ...support.live_objects import WeakList
from ...support.tensor_lists import stored_gradient
from ...support.torch_compat import features, thread_context
from ..hooks import TrainingCalls
from .allocations import AllocationTracker, StorageTable, sizes_in, storages_in
from .memory_report import KINDS, BytesByKind, MemoryUsage
from .saved_tensors import RESOLUTION, SavedTensors

_STATIC_KINDS = ("parameters", "masters", "optimizer", "model_buffers")


class MemoryMeter:
    """Measures from ``start`` to ``stop``, which are called in the thread that trains.

    Until ``stop`` two contexts of torch are entered: saved-tensor hooks (torch 1.10) and a dispatch mode (torch 2.0).
    Contexts that the training itself enters must be nested: entered and left inside ``start`` and ``stop``, or around
    both. The dispatch mode sees every operation, so a measured step may take a few times as long. Before torch 2.0 the
    kinds are counted only when ``sample`` and the methods for an optimizer step are called.
    """

    def __init__(self):
        self._models = weakref.WeakSet()
        self._optimizers = WeakList()  # some optimizers are not hashable
        self._usage = None  # of the step that is being measured

    @property
    def is_measuring(self):
        """Whether a step is being measured."""
        return self._usage is not None

    def track(self, models=(), optimizers=()):
        """Also count these models and optimizers; they are referenced weakly."""
        self._models.update(models)
        for optimizer in optimizers:
            self._optimizers.add(optimizer)

    def tracked(self):
        """Return (models, optimizers): those that still exist."""
        return list(self._models), list(self._optimizers)

    def start(self):
        """Start measuring, before the forward pass of a step."""
        self._forward_has_begun = self._is_in_step = False
        self._usage = MemoryUsage()
        self._temporaries_at_peak = None  # weak references by key
        self._inputs = StorageTable()  # without a dispatch mode: these are not activations when autograd saves them
        has_modes = features.has_dispatch_modes()
        self._allocations = None
        if has_modes:
            device_types = {param.device.type for model in self._models for param in model.parameters()}
            self._allocations = AllocationTracker(self._sample_kinds, self._is_weight, device_types)
        on_growth = None if has_modes else self._sample_kinds
        self._saved = SavedTensors(on_growth) if thread_context.takes_saved_tensor_hooks() else None
        self._find_static_tensors()
        self._sample_kinds()
        with ExitStack() as contexts:
            calls = TrainingCalls(self._before_forward)
            contexts.callback(calls.forget)
            calls.watch(self._models)
            for context in (self._saved, self._allocations):
                if context is not None:
                    contexts.enter_context(context)
            self._contexts = contexts.pop_all()

    def stop(self):
        """Stop measuring, and return the ``MemoryUsage``."""
        self._contexts.close()
        self.sample()
        usage = self._usage
        # Tensors still saved by autograd keep their SavedTensors; nothing else of this step may be kept.
        self._usage = self._temporaries_at_peak = self._saved = self._allocations = None
        self._contexts = self._inputs = self._static = None
        return usage

    def _before_forward(self, model, inputs, kwargs):
        """Start over at the first forward pass in training mode.

        Tensors created since ``start`` are the next batch or from evaluation, and are not counted.
        """
        if self._forward_has_begun:
            return
        self._forward_has_begun = True
        for key, size, storage in storages_in(inputs):
            self._inputs.add(key, size, storage)
        if self._allocations is not None:
            self._allocations.reset()
        self._usage = MemoryUsage()
        self._find_static_tensors()
        self._sample_kinds()

    # -- samples -------------------------------------------------------------------------------------------------------

    def before_step(self):
        """Sample before an optimizer steps: masters and gradients exist; optimizer state may be created from now on."""
        self.sample()
        self._is_in_step = True

    def after_step(self):
        """Sample after an optimizer has stepped."""
        if self.is_measuring:
            self._find_static_tensors()
        self.sample()
        self._is_in_step = False

    def sample(self):
        """Count the current memory, also of the CUDA allocator, if a step is being measured."""
        if self.is_measuring:
            self._sample_kinds()
            self._sample_cuda()

    def _sample_kinds(self):
        """Count the current memory, and keep it if it is the peak so far."""
        if self._usage is None:  # a context of the user that is longer than the step has kept our hooks active
            return
        if self._is_in_step:
            self._find_static_tensors()
        gradients = sizes_in([stored_gradient(param) for param in self._params])
        kinds, temporaries = self._count(gradients)
        usage, total = self._usage, kinds.total
        usage.peak_by_kind = usage.peak_by_kind.maximum(kinds)
        if total > usage.at_peak.total:
            usage.at_peak = kinds
            self._temporaries_at_peak = self._allocations and self._allocations.made.weak_references(temporaries)
        elif self._temporaries_at_peak:
            self._recount_as_gradients(gradients)
        if self._allocations is not None:
            others = total - self._allocations.max_bytes
            self._allocations.limit = usage.at_peak.total * (1 + RESOLUTION) - others

    def _recount_as_gradients(self, gradients):
        """Count temporaries at the peak as gradients if they have become the ``.grad`` of a param since."""
        late = [key for key in gradients if self._temporaries_at_peak.pop(key, None) is not None]
        size = sum(gradients[key] for key in late)
        usage = self._usage
        usage.at_peak = usage.at_peak.plus("temporaries", -size).plus("gradients", size)
        usage.peak_by_kind = usage.peak_by_kind.maximum(usage.at_peak)

    # -- the kind of each storage --------------------------------------------------------------------------------------

    def _find_static_tensors(self):
        """Find the tensors that are only replaced or created in ``step()``."""
        kinds = dict.fromkeys(_STATIC_KINDS, 0)
        self._kind_of = {}
        self._static = StorageTable()  # the key of a replaced tensor, such as a buffer, is not reused
        for kind, tensors in self._static_tensors():
            for key, size, storage in storages_in(tensors):
                if key not in self._kind_of:
                    self._kind_of[key] = kind
                    self._static.add(key, size, storage)
                    kinds[kind] += size
        self._static_bytes = kinds

    def _static_tensors(self):
        models, optimizers = self.tracked()
        params = [param for model in models for param in model.parameters()]
        records = [record for record in map(record_of, optimizers) if record is not None]
        masters = [pair.master for record in records for pair in record.pairs()]
        self._chunks = [chunk for record in records for chunk in record.masters.chunks]
        grouped = [param for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]]
        self._params = list({id(param): param for param in params + masters + grouped}.values())  # may have gradients
        yield "parameters", params
        yield "masters", masters + [chunk.stored_memory() for chunk in self._chunks]
        yield "parameters", grouped  # of models that are not tracked
        # LARC and ZeroRedundancyOptimizer contain an optimizer that has the state.
        inner = [getattr(optimizer, "optim", None) for optimizer in optimizers]
        yield "optimizer", [dict(each.state) for each in optimizers + inner if each is not None]
        yield "model_buffers", [buffer for model in models for buffer in model.buffers()]

    def _count(self, gradients):
        """Return the ``BytesByKind``, and the keys of the temporaries."""
        counted = dict(self._kind_of)
        kinds = dict.fromkeys(KINDS)
        kinds.update(self._static_bytes)
        kinds["gradients"] = _count_new(counted, gradients)
        made = self._allocations and self._allocations.sizes()
        if made is not None:
            resized = _count_new(counted, self._allocations.resized.sizes())  # gathered weights
            kinds["casts"] = _count_new(counted, self._allocations.casts.sizes())
        if self._saved is not None:
            saved = self._saved.sizes()
            known = {key: saved[key] for key in saved if (key not in self._inputs if made is None else key in made)}
            kinds["activations"] = _count_new(counted, known)
        temporaries = () if made is None else [key for key in made if key not in counted]
        if made is not None:
            kinds["temporaries"] = resized + _count_new(counted, made)
            kinds["offloaded"] = sum(self._allocations.elsewhere.sizes().values()) or None
        return BytesByKind(**kinds), temporaries

    def _is_weight(self, key):
        return self._kind_of.get(key) == "parameters"

    def _sample_cuda(self):
        devices = {param.device for param in self._params if param.device.type == "cuda"}
        if not devices:
            return
        usage = self._usage
        usage.cuda_allocated, usage.cuda_reserved, fragmentation = cuda_allocator_stats(devices)
        if fragmentation is not None:
            usage.fragmentation = max(usage.fragmentation or 0.0, fragmentation)


def cuda_allocator_stats(devices):
    """Return (peak allocated, peak reserved, fragmentation now or None) of the CUDA allocator, over some devices."""
    cuda = torch.cuda
    max_reserved = getattr(cuda, "max_memory_reserved", None) or cuda.max_memory_cached  # its name before torch 1.4
    allocated = sum(cuda.max_memory_allocated(device) for device in devices)
    reserved = sum(max_reserved(device) for device in devices)
    stats = [cuda.memory_stats(device) for device in devices] if hasattr(cuda, "memory_stats") else [{}]
    current = sum(each.get("reserved_bytes.all.current", 0) for each in stats)
    inactive = [each.get("inactive_split_bytes.all.current") for each in stats]
    return allocated, reserved, sum(inactive) / current if current and None not in inactive else None


def _count_new(counted, sizes):
    """Return the bytes of the storages that are not in ``counted`` yet, and add them to it."""
    new = {key: size for key, size in sizes.items() if key not in counted}
    counted.update(new)
    return sum(new.values())
