"""Forces an opt level and options on a training run in this process, records it, and reports how it ended."""

import contextlib
import importlib
import os
import platform
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Dict, Optional

import torch

from ... import __version__, opt_levels
from ...engine.casting import emulated_half_arithmetic
from ...engine.session import process_state
from ...errors import AmpError
from ...support.patching import PatchStack
from ...support.torch_compat import features
from ..planned_run import own_files
from ..report_data import DISABLED, NEVER_INITIALIZED, NEVER_TRAINED
from . import kept_files, metrics
from .event_sources import DiagnosisEvents, MemoryEvents
from .plain_torch import PlainTraining, limit_steps
from .recorder import StepLimitReached

#: Files whose frames are left out at the start of a traceback.
HIDDEN_FILES = (__file__,)

#: Options of ``amp.initialize`` that are dtypes.
DTYPE_OPTIONS = ("cast_model_type", "patch_torch_functions_type", "cast_model_outputs")

NO_STEP = "it ended before the first optimizer.step() after an amp.scale_loss"


@dataclass
class RunOptions:
    """How every level is run.

    Args:
        backend, dtypes, verbosity: as for ``ampcompat run``; None keeps what the script passes to ``amp.initialize``.
        diagnose, memory: as for ``compare``.
        initialize: keyword arguments of ``amp.initialize`` that replace the script's; dtypes by their names. Layers of
            ``keep_fp32`` are added to the script's.
        losses_by_line: number losses by their line in the script, and also record training without amp.
        watch: the name of a module whose ``make(recorder, steps)`` returns an additional ``EventSource``, which is also
            a context manager around the training.
    """

    backend: Optional[str] = None
    dtypes: Optional[str] = None
    verbosity: Optional[int] = None
    diagnose: bool = True
    memory: bool = True
    initialize: Dict[str, object] = field(default_factory=dict)
    losses_by_line: bool = False
    watch: Optional[str] = None

    def __post_init__(self):
        opt_levels.parse_dtypes(self.dtypes)
        for name in DTYPE_OPTIONS:  # command lines and JSON contain dtypes as names
            if isinstance(self.initialize.get(name), str):
                self.initialize = dict(self.initialize, **{name: getattr(torch, self.initialize[name])})

    @property
    def overrides(self):
        """What replaces the script's own values, as in ``ampcompat run``."""
        given = {"backend": self.backend, "dtypes": self.dtypes, "verbosity": self.verbosity}
        return {name: value for name, value in given.items() if value is not None}


@contextlib.contextmanager
def recorded_at(level, recorder, options, checkpoints=()):
    """Force an opt level (None: the script's own) and record every session of the block; close them afterwards.

    The level is forced by environment variables, as in ``ampcompat run``, so that it applies to worker processes too.

    Args:
        level: the level, or None.
        recorder: its ``Recorder``.
        options: the ``RunOptions``.
        checkpoints: those of the series' other runs, as ``Report.checkpoints`` returns them.
    """
    watches = [importlib.import_module(options.watch).make(recorder, recorder.limit)] if options.watch else []
    recorder.sources += watches + ([DiagnosisEvents()] if options.diagnose else [])
    recorder.sources += [MemoryEvents()] if options.memory else []
    observers = recorder.sources + [recorder]  # which may stop the run after a step that the others observe first
    plain = PlainTraining(recorder, watches) if options.losses_by_line else None
    before = process_state.command_line()
    forced = dict(options.overrides, opt_level=level)
    process_state.set_command_line(**forced)
    process_state.observers.extend(observers)
    try:
        with metrics.recording(recorder), PatchStack() as patches, contextlib.ExitStack() as stack:
            for watch in watches:
                stack.enter_context(watch)
            patches.set(process_state, "initialize_options", options.initialize)
            Checkpoints(recorder, checkpoints).watch(patches)
            recorder.data.watch(patches)
            if plain is not None:
                plain.watch(patches)
            elif recorder.limit is not None:
                limit_steps(recorder, patches)
            yield
    finally:
        try:
            process_state.close_all()
        finally:
            for observer in observers:
                process_state.observers.remove(observer)
            process_state.set_command_line(**{name: before.get(name) for name in forced})


def run_to_end(recorder, function, hidden_files=()):
    """Call a training function and return the event of its end, even if it raises.

    Args:
        recorder: its ``Recorder``.
        hidden_files: further files whose frames are left out at the start of a traceback.
    """
    end = None
    try:
        function()
    except StepLimitReached:
        pass
    except KeyboardInterrupt:
        end = {"end": "interrupted", "error": "interrupted"}
    except SystemExit as error:
        end = {"end": "failed", "error": _describe_exit(error.code)} if error.code not in (None, 0) else None
    except Exception as error:
        end = _failure(error, HIDDEN_FILES + hidden_files)
    recorder.finish()
    if recorder.is_full and (end is None or end["end"] == "failed"):  # a script may turn the stop into its own error
        return {"end": "stopped"}
    missing = _missing(recorder)
    return end or ({"end": "failed", "error": missing} if missing else {"end": "ok"})


def _describe_exit(code):
    return f"it left with exit code {code}" if isinstance(code, int) else str(code).strip() or "it left"


def _failure(error, hidden_files):
    """Return the event of a run that raised: its error in one line, and the whole traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in hidden_files:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    message = (str(error).strip().splitlines() or [""])[0]
    name = type(error).__name__
    if isinstance(error, FileExistsError):
        message += f"; give each run its own: {own_files(sys.argv, [os.path.abspath(str(error.filename))])}"
    return {"end": "failed", "error": f"{name}: {message}" if message else name, "traceback": "".join(lines)}


def _missing(recorder):
    """Return why a run that ended without an error cannot be compared, or None if it can."""
    if not recorder.is_initialized:
        if any(not session.enabled for session in process_state.sessions):
            return DISABLED
        return NEVER_TRAINED if recorder.has_plain_steps else NEVER_INITIALIZED
    if recorder.run.step_seconds:
        return None
    loaded = " and ".join(os.path.relpath(path) for path in recorder.loaded)
    return NO_STEP + (f", after it had loaded {loaded}: had that training already ended?" if loaded else "")


def environment():
    """Return the versions and the platform for a report."""
    return {
        "ampcompat": __version__,
        "torch": features.version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": machine(),
    }


def machine():
    """Return the name of the CPU, as reported by Linux, and the number of its cores."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def device_name(device):
    """Return a description of the device that the losses were on; None if there was no loss."""
    if device is None:
        return None
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    if device.type != "cpu":
        return device.type
    halves = (("float16", torch.float16), ("bfloat16", torch.bfloat16))
    emulated = " and ".join(name for name, dtype in halves if emulated_half_arithmetic.is_wanted(dtype))
    told = f", {emulated} emulated in float32" if emulated else ""
    return f"cpu (threads: {torch.get_num_threads()}{told})"


class Checkpoints:
    """Records the files that a run saves after its first step, and refuses those of other runs before it.

    Scripts that resume save a checkpoint under the same name in every run, and a run that continues from another run's
    checkpoint cannot be compared.

    A file that another run saved before its first step, such as a preprocessed dataset, does not count as a checkpoint;
    neither does one that was written after this run began.

    Args:
        recorder: the ``Recorder`` of the run; ``loaded`` gets the files that are loaded before the first step.
        others: ``{path: name of the run that saved it}``.
    """

    def __init__(self, recorder, others):
        self._recorder = recorder
        self._others = dict(others)
        self._began = time.time()
        self._recorded = set()

    def watch(self, patches):
        """Watch ``torch.load``, and what ``kept_files`` sees of ``torch.save``, until ``patches`` is undone."""
        kept_files.call_after_save(self._saved, patches)
        patches.wrap(torch, "load", self._check_and_load)

    def _saved(self, path):
        if path not in self._recorded and self._has_stepped():
            self._recorded.add(path)
            self._recorder.record({"saved": path})

    def _check_and_load(self, load, f, *args, **kwargs):
        path = kept_files.path_of(f)
        if path is not None and not self._has_stepped():
            if path in self._others and os.path.getmtime(path) < self._began:
                raise AmpError(_refusal(path, self._others[path]))
            self._recorder.loaded.append(path)
        return load(f, *args, **kwargs)

    def _has_stepped(self):
        return bool(self._recorder.run.step_seconds)


def _refusal(path, other):
    return (
        f"this run would continue from {os.path.relpath(path)}, the checkpoint of the run {other}, and could not be "
        f"compared. Give each run its own files: {own_files(sys.argv, [path])}; or start the script without resuming"
    )
