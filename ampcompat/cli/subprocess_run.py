"""Runs a script at one level in a child process and reads its events. This process does not import torch."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from typing import Dict, List, Optional

from ..abtest.event_log import EventReader, apply_event
from ..abtest.report_data import Run
from ..apex.install import environment
from .run import interpreter_options

#: Seconds between two reads of the child's events.
POLL_INTERVAL = 0.05

#: Seconds for a child to end after Ctrl-C, which a terminal sends to child and parent alike, before it gets another
#: SIGINT, which would interrupt how the script handles the first; then for each stronger signal.
INTERRUPT_WAIT, TERMINATE_WAIT = 1.0, 10.0

#: Bytes of a script's output that are shown when it fails.
OUTPUT_BYTES = 4000


@dataclass
class ChildTask:
    """What a child process runs. ``options``: keyword arguments of ``comparison.RunOptions``."""

    command: List[str]
    level: str
    seed: int = 0
    repeat: int = 0
    steps: Optional[int] = None
    options: Dict[str, object] = field(default_factory=dict)
    event_log: Optional[str] = None


class SubprocessRun:
    """Starts a child process and collects its ``run``, ``environment`` and ``output``.

    Args:
        task: a ``ChildTask``.
        launcher: the command, as a list, that starts Python processes, such as torchrun's; empty for one process.
        timeout: seconds after which the child is ended, or None.
        shows_output: print the script's output instead of collecting it.
    """

    def __init__(self, task, launcher=(), timeout=None, shows_output=False):
        self.task = task
        self.run = Run()
        self.environment = {}
        self.output = ""
        self._launcher = list(launcher) or [sys.executable] + interpreter_options()
        self._timeout = timeout
        self._shows_output = shows_output
        self._has_ended = False

    def run_to_end(self, on_event):
        """Run to the end; call ``on_event`` with every event, and with None from time to time.

        Raises:
            KeyboardInterrupt: Ctrl-C; the child has ended, and ``run`` has what was recorded.
        """
        with tempfile.TemporaryDirectory(prefix="ampcompat-ab-") as folder:
            self.task.event_log = os.path.join(folder, "events")
            reader = EventReader(self.task.event_log)
            with open(os.path.join(folder, "output"), "w+b") as output:
                process = self._open(None if self._shows_output else output)
                try:
                    self._follow(process, reader, on_event)
                except BaseException as error:
                    _end(process, was_interrupted=isinstance(error, KeyboardInterrupt))
                    self._read_events(reader, on_event)
                    if not self._has_ended:
                        apply_event(self.run, {"end": "interrupted", "error": "interrupted"})
                    raise
                finally:
                    self.output = _tail(output)

    def _open(self, output):
        command = self._launcher + ["-m", "ampcompat.cli.child_process", json.dumps(asdict(self.task))]
        env = dict(os.environ, **environment())
        env["PYTHONHASHSEED"] = str(self.task.seed % 2**32)
        streams = {} if output is None else {"stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, **streams)

    def _follow(self, process, reader, on_event):
        begin = time.monotonic()
        ended = None
        while process.poll() is None:
            time.sleep(POLL_INTERVAL)
            self._read_events(reader, on_event)
            now = time.monotonic()
            ended = ended or (now if self._has_ended else None)
            if ended is not None and now - ended > TERMINATE_WAIT:  # threads of the script that do not end
                _end(process)
            elif ended is None and self._timeout is not None and now - begin > self._timeout:
                _end(process)
                self._read_events(reader, on_event)
                self._fail("it had not ended after {:g} seconds (--timeout)".format(self._timeout))
        self._read_events(reader, on_event)
        self._fail(_describe_exit(process.returncode))

    def _fail(self, error):
        if not self._has_ended:
            self._has_ended = True
            apply_event(self.run, {"end": "failed", "error": error})

    def _read_events(self, reader, on_event):
        for event in reader.new_events():
            values = event.get("environment", {})
            self.environment.update({name: value for name, value in values.items() if value is not None})
            self._has_ended = self._has_ended or "end" in event
            apply_event(self.run, event)
            on_event(event)
        on_event(None)


def _end(process, was_interrupted=False):
    """End a child: wait, send SIGINT after Ctrl-C, then SIGTERM, then kill it."""
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


def _describe_exit(code):
    """Return how a child ended that wrote no event of its end."""
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return "its process was killed by {}".format(names.get(-code, "signal {}".format(-code)))
    return "its process ended with exit code {} and without an error message".format(code)


def _tail(output):
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - OUTPUT_BYTES))
    return output.read().decode("utf-8", "replace").strip()
