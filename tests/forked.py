"""Run scripts and command lines in processes forked from a server that has imported torch and done nothing else.

Importing torch again would take most of their time. A test of what is imported, of options of the interpreter or of
the processes that a script starts needs a real one: ``processes.python``.
"""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import types

import processes
import pytest

from ampcompat.abtest import child_process, subprocess_run
from ampcompat.cli import main
from ampcompat.cuda_redirect import redirect_device, startup
from ampcompat.training import state

#: What the server imports. ``torch._dynamo`` is what torch's optimizers and wrappers import when they are first used.
PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "pytest"]
PRELOADED += ["ampcompat.amp", "ampcompat.apex.parallel", "ampcompat.abtest.child_process"]


def start_method():
    """Return the name of the start method, "forkserver" where there is one; its server imports ``PRELOADED``."""
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return "spawn"
    multiprocessing.set_forkserver_preload(PRELOADED)
    # Threads that wait for one another spin otherwise, which on a busy machine takes longer than what they wait for.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return "forkserver"


def script(path, *arguments):
    """Do what ``python PATH ARGUMENTS`` does."""
    sys.argv[:] = [str(path)] + [str(argument) for argument in arguments]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


def command(*arguments):
    """Do what ``python -m ampcompat run ARGUMENTS`` does."""
    processes.run_in_process(pytest.MonkeyPatch(), *arguments)


def ab(*arguments):
    """Do what ``python -m ampcompat ab ARGUMENTS`` does; the processes of its runs are forked from the server too."""
    subprocess_run.subprocess = types.SimpleNamespace(**vars(subprocess))
    subprocess_run.subprocess.Popen = _popen
    sys.exit(main(["ab"] + [str(argument) for argument in arguments]))


def _popen(command, **options):
    """Do what ``subprocess.Popen`` does. Of this interpreter, forked instead, the options are not applied."""
    return (ForkedRun if command[0] == sys.executable else subprocess.Popen)(command, **options)


class ForkedRun:
    """What ``SubprocessRun`` needs of ``Popen([INTERPRETER, …, TASK])``, for a process that does one run of ``ab``."""

    def __init__(self, command, stdin, env, cwd, stdout, stderr):
        paths = {"stdout": stdout.name, "stderr": stdout.name}
        self._process = start(child_run, command[-1], os.getpid(), cwd or os.getcwd(), env=env, **paths)
        self.kill = self._process.kill

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("run", timeout)

    def send_signal(self, number):
        os.kill(self._process.pid, number)


def child_run(task, parent, folder):
    """Do what ``python -m ampcompat.abtest.child_process TASK`` does in a process started by ``parent``."""
    os.getppid = lambda: parent  # it is the server otherwise
    os.chdir(folder)
    installed = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [folder] + os.environ["PYTHONPATH"].split(os.pathsep) + installed
    sys.exit(child_process.main([task]))


def start(function, *arguments, **options):
    """Start ``script``, ``command`` or ``ab`` in a process; return it.

    Options: the paths of files that ``stdout`` and ``stderr`` go to (nowhere by default), and ``env``.
    """
    files = options.pop("stdout", os.devnull), options.pop("stderr", os.devnull)
    env = options.pop("env", None) or processes.environment()
    context = multiprocessing.get_context(start_method())
    process = context.Process(target=_work, args=(files, env, function, arguments), **options)
    process.start()
    return process


def run(function, *arguments, **options):
    """Run ``script``, ``command`` or ``ab`` in a process; return it finished, its output as text.

    Options: ``env``, and ``interrupt_at``, the path of a file; once it exists, the process gets a SIGINT.
    """
    marker = options.pop("interrupt_at", None)
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        process = start(function, *arguments, stdout=files[0], stderr=files[1], **options)
        if marker is not None:
            while not os.path.exists(str(marker)) and process.is_alive():
                time.sleep(0.05)
            os.kill(process.pid, signal.SIGINT)
        process.join()
        texts = []
        for path in files:
            with open(path, encoding="utf-8") as file:
                texts.append(file.read())
    return subprocess.CompletedProcess(arguments, process.exitcode, *texts)


def _work(files, env, function, arguments):
    for descriptor, path in zip((1, 2), files):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    if start_method() == "forkserver":
        from multiprocessing import forkserver

        forkserver._forkserver.ensure_running = lambda: None  # it would start a second server for this one's processes
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which background jobs ignore
    os.environ.clear()  # the server's, which has been there since the first test that used it
    os.environ.update(env)
    # What a script registers when it imports ampcompat; Python 3.13 drops the server's functions in its processes.
    atexit.unregister(state._sync_all)
    atexit.register(state._sync_all)
    try:
        with contextlib.ExitStack() as redirected:
            if startup.VARIABLE in env:  # what `sitecustomize` does in a new interpreter
                redirected.enter_context(redirect_device(env[startup.VARIABLE]))
            function(*arguments)
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing ends without them
