"""Replacements for functions of ``torch.cuda`` whose results depend on the target: device, memory, random numbers.

Functions that always return the same value are rows in ``name_table``. Memory counters that the target does not have
are 0.
"""

import os
from typing import NamedTuple

import torch

from ....errors import AmpValueError
from . import unsupported

#: The compute capability of the first GPUs with tensor cores: scripts that check for them take that branch.
CAPABILITY = (7, 0)


class DeviceProperties(NamedTuple):
    """The result of ``torch.cuda.get_device_properties``."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    warp_size: int = 32
    max_threads_per_multi_processor: int = 0
    regs_per_multiprocessor: int = 0
    shared_memory_per_block: int = 0
    L2_cache_size: int = 0
    gcnArchName: str = ""
    uuid: str = ""


def _counter(*names):
    """Return a method that returns a counter of the target, by the first name that it has; 0 if it has none."""

    def counter(self, device=None):
        module = self._target.module
        return next((getattr(module, name)() for name in names if hasattr(module, name)), 0)

    return counter


class DeviceQueries:
    """For one target, methods that replace the functions of ``torch.cuda`` of the same names."""

    def __init__(self, target):
        self._target = target

    # -- devices -------------------------------------------------------------------------------------------------------

    def device_count(self):
        """Return the number of devices."""
        return self._target.count()

    def current_device(self):
        """Return the index that was last set in this thread."""
        return self._target.current

    def set_device(self, device):
        """Set the current index; every index refers to the same device."""
        index = self._target.index(device)
        if index is not None and index >= 0:
            self._target.current = index

    def get_device_name(self, device=None):
        """Return a name that contains the target."""
        return f"{self._target.type.upper()} in place of CUDA (ampcompat)"

    def get_device_properties(self, device=None):
        """Return ``DeviceProperties`` of this machine."""
        memory, processors = _host_memory()[1], os.cpu_count() or 1
        return DeviceProperties(self.get_device_name(), CAPABILITY[0], CAPABILITY[1], memory, processors)

    def synchronize(self, device=None):
        """Wait for the device."""
        self._target.synchronize()

    def cudart(self):
        """Return the part of the CUDA runtime that scripts use: to start and stop a profiler."""
        return _Runtime(self._target)

    # -- memory --------------------------------------------------------------------------------------------------------

    # Bytes of tensors on the device, bytes reserved by the allocator, and the peaks of both.
    memory_allocated = _counter("memory_allocated", "current_allocated_memory")
    max_memory_allocated = _counter("max_memory_allocated", "current_allocated_memory")
    memory_reserved = memory_cached = _counter("memory_reserved", "driver_allocated_memory")
    max_memory_reserved = max_memory_cached = _counter("max_memory_reserved", "driver_allocated_memory")

    def mem_get_info(self, device=None):
        """Return (free, total) bytes of the memory of this machine."""
        return _host_memory()

    # -- random numbers ------------------------------------------------------------------------------------------------
    # torch.manual_seed calls manual_seed_all below, so these must not call torch.manual_seed.

    @property
    def _generator(self):
        return torch.default_generator if self._target.module is None else self._target.module

    def manual_seed(self, seed):
        """Seed the device's generator; on the CPU that is the one which ``torch.manual_seed`` seeds."""
        self._generator.manual_seed(int(seed))

    manual_seed_all = manual_seed

    def seed(self):
        """Seed the device's generator at random."""
        self._generator.seed()

    seed_all = seed

    def initial_seed(self):
        """Return the last seed."""
        module = self._target.module
        return (module if hasattr(module, "initial_seed") else torch.default_generator).initial_seed()

    def get_rng_state(self, device="cuda"):
        """Return the state of the device's generator."""
        return (self._target.module or torch.random).get_rng_state()

    def get_rng_state_all(self):
        """Return a list with that state."""
        return [self.get_rng_state()]

    def set_rng_state(self, new_state, device="cuda"):
        """Set the state of the device's generator."""
        if new_state.numel() != self.get_rng_state().numel():
            raise AmpValueError(
                f"torch.cuda.set_rng_state got a state of {new_state.numel()} bytes, but that of a generator of "
                f"{self._target.type} has {self.get_rng_state().numel()}: a state saved on another device does not "
                "fit. Leave it out when you resume here."
            )
        (self._target.module or torch.random).set_rng_state(new_state)

    def set_rng_state_all(self, new_states):
        """Set the state to the first of a list."""
        for state in list(new_states)[:1]:
            self.set_rng_state(state)


class _Runtime:
    """The result of ``torch.cuda.cudart()``."""

    def __init__(self, target):
        self._target = target

    def cudaProfilerStart(self):
        """Return 0: success."""
        return 0

    cudaProfilerStop = cudaProfilerStart

    def __getattr__(self, name):
        raise unsupported.unsupported_error("torch.cuda.cudart()." + name, self._target, "it calls the CUDA runtime")


def _host_memory():
    """Return (free, total) bytes of memory; 0 if the system has no such query."""
    sizes = []
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        known = hasattr(os, "sysconf") and pages in os.sysconf_names
        sizes.append(os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") if known else 0)
    return sizes[0] or sizes[1], sizes[1]
