"""Does a ``PlannedRun`` in a child process and reads its events. This process does not import torch."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict

from ...apex.install import interpreter_options
from ...support.child_environment import ROOT, ChildEnvironment
from ..planned_run import PLACEHOLDER
from ..recording.event_log import EventReader, apply_event
from ..recording.runs_in_progress import RunInProgress
from ..report_data import Run

#: The file that Python runs in the child process.
START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "script_path_start.py")

#: Seconds between two reads of the child's events.
POLL_INTERVAL = 0.05

#: Seconds that a child gets to end after Ctrl-C, which a terminal sends to both child and parent, before it gets
#: another SIGINT, which would interrupt the script's handling of the first; then seconds for each stronger signal.
INTERRUPT_WAIT, TERMINATE_WAIT = 1.0, 10.0

#: Whether SIGTERM has arrived: then children get a SIGINT at once, and are killed after ``INTERRUPT_WAIT``.
_is_terminated = threading.Event()

#: Bytes of a script's output that are shown when it fails.
OUTPUT_BYTES = 4000


class Terminated(KeyboardInterrupt):
    """SIGTERM, which a scheduler sends; handled like Ctrl-C, so that the child process ends."""


@contextlib.contextmanager
def sigterm_as_interrupt():
    """Raise ``Terminated`` if SIGTERM arrives within the block; for the main thread."""

    def terminate(number, frame):
        _is_terminated.set()
        raise Terminated

    _is_terminated.clear()
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(interrupt):
    """Return the exit code after a ``KeyboardInterrupt``."""
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


class SubprocessRun:
    """Starts a child process and collects its ``run``, ``environment`` and ``output``.

    Args:
        planned: a ``PlannedRun``.
        shows_output: print the script's output instead of collecting it.
        name: what replaces ``{run}`` in the script's arguments; the name of the planned run, if it is None.
        checkpoints: those of the series' other runs, as ``Report.checkpoints`` returns them.
        module: the module whose ``main`` does the run in the child process; None: ``subprocess_child``.
    """

    def __init__(self, planned, shows_output=False, name=None, checkpoints=(), module=None):
        self.planned = planned
        self.name = name or planned.name
        self._checkpoints = dict(checkpoints)
        self._module = module
        self.run = Run(identity=planned.identity())
        self.environment = {}
        self.output = ""
        self.seconds = 0.0  # from the start of the process to its end
        self._in_progress = RunInProgress(planned.since)
        self.put_back = self._in_progress.put_back
        self._shows_output = shows_output
        self._has_ended = False
        self._process = None

    def run_to_end(self, on_event):
        """Run to the end; call ``on_event`` with every event, and with None from time to time.

        Raises:
            KeyboardInterrupt: Ctrl-C; the child has ended, and ``run`` has what was recorded.
        """
        with tempfile.TemporaryDirectory(prefix="ampcompat-ab-") as folder, self._in_progress:
            reader = EventReader(os.path.join(folder, "events"))
            with open(os.path.join(folder, "output"), "w+b") as output:
                try:
                    self._process = self._open(folder, None if self._shows_output else output)
                except OSError as error:
                    self._fail(f"it cannot be started: {error}")
                    return
                try:
                    self._follow(self._process, reader, on_event)
                    self._fail(_describe_exit(self._process.returncode, _tail(output)))
                except BaseException as error:
                    _end(self._process, was_interrupted=isinstance(error, KeyboardInterrupt))
                    self._read_events(reader, on_event)
                    if not self._has_ended:
                        apply_event(self.run, {"end": "interrupted", "error": "interrupted"})
                    raise
                finally:
                    self.output = _tail(output)

    def _open(self, folder, output):
        planned = self.planned
        task = dict(asdict(planned), event_log=os.path.join(folder, "events"))
        task.update(checkpoints=self._checkpoints, module=self._module, kept=self._in_progress.manifest)
        task["command"] = planned.command[:1] + [self._named(each) for each in planned.command[1:]]
        task["parent"] = None if planned.launcher else os.getpid()
        start = planned.launcher or [planned.python or sys.executable] + interpreter_options()
        command = start + [START, json.dumps(task)]
        streams = {} if output is None else {"stdout": output, "stderr": subprocess.STDOUT}
        env = self._variables(folder)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, cwd=planned.folder, **streams)

    def _named(self, argument):
        """Return an argument with the run's name, of which the folder exists: `--out=runs/{run}/last.pt`."""
        named = argument.replace(PLACEHOLDER, self.name)
        parent = os.path.dirname(named.rpartition("=")[2])
        if named != argument and parent and "://" not in named:
            os.makedirs(os.path.join(self.planned.folder or os.getcwd(), parent), exist_ok=True)
        return named

    def _variables(self, folder):
        """Return the environment of the child process.

        Another interpreter gets this ampcompat through a link, without other packages installed next to it.
        """
        told = ChildEnvironment(has_alias=self.planned.has_alias, device=self.planned.device).to_env()
        if self.planned.python is not None:
            os.symlink(os.path.join(ROOT, "ampcompat"), os.path.join(folder, "ampcompat"))
            path = [entry for entry in told["PYTHONPATH"].split(os.pathsep) if entry != ROOT]
            told["PYTHONPATH"] = os.pathsep.join([folder] + path)
        told["PYTHONHASHSEED"] = str(self.planned.seed % 2**32)
        return {**os.environ, **told, **self.planned.environment}

    def _follow(self, process, reader, on_event):
        begin = time.monotonic()
        ended, timeout = None, self.planned.timeout
        while process.poll() is None:
            time.sleep(POLL_INTERVAL)
            self._read_events(reader, on_event)
            now = time.monotonic()
            ended = ended or (now if self._has_ended else None)
            if ended is not None and now - ended > TERMINATE_WAIT:  # threads of the script that do not end
                _end(process)
            elif ended is None and timeout is not None and now - begin > timeout:
                _end(process)
                self._read_events(reader, on_event)
                self._fail(f"it had not ended after {timeout:g} seconds (--timeout)")
        self.seconds = time.monotonic() - begin
        self._read_events(reader, on_event)
        if process.returncode == 0 and self.run.step_seconds:  # with ``os._exit``, after the training
            self._apply_end({"end": "ok"})

    def _fail(self, error):
        self._apply_end({"end": "failed", "error": error})

    def _apply_end(self, event):
        if not self._has_ended:
            self._has_ended = True
            apply_event(self.run, event)

    def _read_events(self, reader, on_event):
        for event in reader.new_events():
            values = event.get("environment", {})
            self.environment.update({name: value for name, value in values.items() if value is not None})
            self.run.identity.update({name: values[name] for name in ("torch", "device") if values.get(name)})
            self._has_ended = self._has_ended or "end" in event
            apply_event(self.run, event)
            on_event(event)
        on_event(None)


def run_one(child, label, progress, on_event=None):
    """Do a ``SubprocessRun`` to its end, show its progress under a label, and return it.

    Args:
        on_event: called with every event; it may raise to end the run.
    """

    def show(event):
        if event is not None and on_event is not None:
            on_event(event)
        progress.update()

    progress.begin(label, child.run)
    try:
        child.run_to_end(show)
    finally:
        progress.end()
    return child


def _end(process, was_interrupted=False):
    """End a child: wait, send SIGINT after Ctrl-C, then SIGTERM, then kill it. After a SIGTERM this is faster."""
    if _is_terminated.is_set():
        signals = [(signal.SIGINT, 0.0), (None, INTERRUPT_WAIT)]
    else:
        signals = [(signal.SIGINT, INTERRUPT_WAIT)] if was_interrupted else []
        signals += [(signal.SIGTERM, TERMINATE_WAIT if was_interrupted else 0.0), (None, TERMINATE_WAIT)]
    for number, seconds in signals:
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            process.kill() if number is None else process.send_signal(number)
        except KeyboardInterrupt:  # a second Ctrl-C
            process.kill()
    process.wait()


def _describe_exit(code, printed):
    """Return how a child ended that wrote no event of its end: its error, if it printed a traceback last."""
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return "its process was killed by {}".format(names.get(-code, f"signal {-code}"))
    if code and "Traceback (most recent call last):" in printed:
        return printed.splitlines()[-1]
    return f"its process ended with exit code {code} and without an error message"


def _tail(output):
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - OUTPUT_BYTES))
    return output.read().decode("utf-8", "replace").strip("\n").rstrip()
