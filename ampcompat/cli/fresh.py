"""One run of a script in a process of its own, followed while it lasts.

Owns: the process: its command, environment, output, its end when it is time.
Must not touch: torch, which is the child's; the terminal.
The surprise: Ctrl-C on a terminal reaches child and parent alike. The child gets a moment to end by itself before
the parent passes the signal on, since a second one would cut short what the script does about the first.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import List, Optional

from ..abtest.journal import Reader, take_in
from ..abtest.records import Run
from ..apex.install import environment
from .run import interpreter_options

#: Seconds: between two looks at the child, for a child to end by itself, to end when asked to.
GLANCE, MOMENT, PATIENCE = 0.05, 1.0, 10.0

#: Characters of a script's output that are shown when it fails.
TAIL = 4000


@dataclass
class Start:
    """What a child is told: which script, at which level, with which seeds, for how many steps."""

    target: List[str]
    level: str
    seed: int = 0
    repeat: int = 0
    steps: Optional[int] = None
    backend: Optional[str] = None
    dtypes: Optional[str] = None
    verbosity: Optional[int] = None
    diagnoses: bool = True
    measures_memory: bool = True
    journal: Optional[str] = None


class FreshRun:
    """Starts a child, follows it to its end and gathers its ``run``.

    Args:
        start: a ``Start``.
        launcher: the words of a command that starts Python processes, such as torchrun's; empty for one process.
        timeout: seconds after which the child is ended, or None.
        shows_output: the script's output goes to ours, and is not kept.
    """

    def __init__(self, start, launcher=(), timeout=None, shows_output=False):
        self.start = start
        self.run = Run()
        self.environment = {}
        self.output = ""
        self._launcher = list(launcher) or [sys.executable] + interpreter_options()
        self._timeout = timeout
        self._shows_output = shows_output
        self._has_ended = False

    def follow(self, tell):
        """Run to the end; ``tell(event or None)`` hears of every event, and that time passes.

        Raises:
            KeyboardInterrupt: Ctrl-C; the child has ended, and ``run`` has what was measured.
        """
        with tempfile.TemporaryDirectory(prefix="ampcompat-ab-") as folder:
            self.start.journal = os.path.join(folder, "journal")
            reader = Reader(self.start.journal)
            with open(os.path.join(folder, "output"), "w+b") as output:
                process = self._open(None if self._shows_output else output)
                try:
                    self._watch(process, reader, tell)
                except BaseException as error:
                    _end(process, politely=isinstance(error, KeyboardInterrupt))
                    self._take_in(reader, tell)
                    if not self._has_ended:
                        take_in(self.run, {"end": "interrupted", "error": "interrupted"})
                    raise
                finally:
                    self.output = _tail(output)

    def _open(self, output):
        command = self._launcher + ["-m", "ampcompat.cli.child", json.dumps(asdict(self.start))]
        env = dict(os.environ, **environment())
        env["PYTHONHASHSEED"] = str(self.start.seed % 2**32)
        streams = {} if output is None else {"stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, **streams)

    def _watch(self, process, reader, tell):
        begin = time.monotonic()
        ended = None
        while process.poll() is None:
            time.sleep(GLANCE)
            self._take_in(reader, tell)
            now = time.monotonic()
            ended = ended or (now if self._has_ended else None)
            if ended is not None and now - ended > PATIENCE:  # threads of the script that never come to an end
                _end(process)
            elif ended is None and self._timeout is not None and now - begin > self._timeout:
                _end(process)
                self._take_in(reader, tell)
                self._fail("it had not ended after {:g} seconds (--timeout)".format(self._timeout))
        self._take_in(reader, tell)
        self._fail(_sentence(process.returncode))

    def _fail(self, why):
        if not self._has_ended:
            self._has_ended = True
            take_in(self.run, {"end": "failed", "error": why})

    def _take_in(self, reader, tell):
        for event in reader.new_events():
            told = event.get("environment", {})
            self.environment.update({name: value for name, value in told.items() if value is not None})
            self._has_ended = self._has_ended or "end" in event
            take_in(self.run, event)
            tell(event)
        tell(None)


def _end(process, politely=False):
    """End a child: let it end by itself, ask it, then insist."""
    waits = [(signal.SIGINT, MOMENT)] if politely else []
    for number, patience in waits + [(signal.SIGTERM, PATIENCE if politely else 0.0), (None, PATIENCE)]:
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            process.kill() if number is None else process.send_signal(number)
        except KeyboardInterrupt:  # once more: there is no time for good manners
            process.kill()
    process.wait()


def _sentence(code):
    """Say how a child ended that left no word."""
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return "its process was killed by {}".format(names.get(-code, "signal {}".format(-code)))
    return "its process left with exit code {} before it could say why".format(code)


def _tail(output):
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - TAIL))
    return output.read().decode("utf-8", "replace").strip()
