"""Run scripts and command lines in processes forked from a server that has imported torch and done nothing else.

Importing torch again would take most of their time. A test of what is imported, of options of the interpreter or of
the processes that a script starts needs a real one: ``processes.python``.
"""

import atexit
import contextlib
import ctypes
import functools
import importlib.util
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import types
import weakref

import pytest
import torch

from ampcompat.abtest.running import script_path_start, subprocess_supervisor
from ampcompat.cli import main
from ampcompat.cuda_redirect import redirect_device
from ampcompat.engine.session import process_state
from ampcompat.support.child_environment import ChildEnvironment
from ampcompat.support.torch_compat import process_groups
from helpers import processes

#: What the server imports, if it is there. ``torch._dynamo`` is what torch's optimizers and wrappers import when they
#: are first used; the examples take their digits from scikit-learn.
PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "pytest", "sklearn.datasets"]
PRELOADED += ["torch.distributed.checkpoint.state_dict", "ampcompat.amp", "ampcompat.apex.parallel"]
PRELOADED += ["ampcompat.abtest.running.subprocess_child"]

POPEN = subprocess.Popen
_outputs = []  # the paths of the files that this process writes to
_kept = []  # see keep_process_groups


def start_method():
    """Return the name of the start method, "forkserver" where there is one; its server imports ``PRELOADED``."""
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return "spawn"
    multiprocessing.set_forkserver_preload(PRELOADED)
    # Threads that wait for one another spin otherwise, which on a busy machine takes longer than what they wait for.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return "forkserver"


def end_with_the_server():
    """Have the system kill this process, which the server forked, when the server ends; Linux can."""
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def end_all():
    """Kill what this process has started, and end the server, with which the system ends what those have started.

    At its end a process of multiprocessing waits for those that it has started, for as long as they take.
    """
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
        process.join()


def script(path, *arguments):
    """Do what ``python PATH ARGUMENTS`` does."""
    sys.argv[:] = [str(path)] + [str(argument) for argument in arguments]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


def command(*arguments):
    """Do what ``ampcompat run ARGUMENTS`` does."""
    processes.run_in_process(pytest.MonkeyPatch(), *arguments)


def torchrun(*arguments):
    """Do what ``python -m torch.distributed.run ARGUMENTS`` does (``launch`` on old torch).

    Its ranks run ``ampcompat run …``; they are forked from the server too.
    """
    subprocess.Popen = _popen_rank
    os.killpg = functools.partial(_signal, os.killpg)
    handler = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
    if handler in sys.modules:  # which the server has imported
        sys.modules[handler].Popen = _popen_rank
    name = "torch.distributed.run" if importlib.util.find_spec("torch.distributed.run") else "torch.distributed.launch"
    sys.argv[1:] = [str(argument) for argument in arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def ab(*arguments):
    """Do what ``ampcompat ab ARGUMENTS`` does; the processes of its runs are forked from the server too."""
    _command_with_runs("ab", *arguments)


def forecast(*arguments):
    """Do what ``ampcompat forecast ARGUMENTS`` does; the process of its run is forked from the server too."""
    _command_with_runs("forecast", *arguments)


def audit(*arguments):
    """Do what ``python -m ampcompat audit ARGUMENTS`` does; the process of its run is forked from the server too."""
    _command_with_runs("audit", *arguments)


def planned_run(*arguments):
    """Do what ``ampcompat planned ARGUMENTS`` does; its run is forked too."""
    _command_with_runs("planned", *arguments)


def _command_with_runs(*arguments):
    fork_runs()
    sys.exit(main([str(argument) for argument in arguments]))


def fork_runs():
    """Let commands in this process fork the processes of their runs."""
    subprocess_supervisor.subprocess = types.SimpleNamespace(**vars(subprocess))
    subprocess_supervisor.subprocess.Popen = popen_run


def popen_run(args, stdin, env, cwd, stdout, stderr):
    """Do what ``subprocess.Popen([INTERPRETER, …, TASK])`` does, for the process of a run of ``ab``."""
    if args[0] != sys.executable:
        return POPEN(args, stdin=stdin, env=env, cwd=cwd, stdout=stdout, stderr=stderr)
    return Forked(child_run, args[-1], os.getpid(), cwd or os.getcwd(), env=env, stdout=stdout.name, stderr=stdout.name)


def _popen_rank(args, env, **options):
    """Do what ``subprocess.Popen([INTERPRETER, …, "-m", "ampcompat", "run", …])`` does, for a rank of torchrun."""
    arguments = args[args.index("ampcompat") + 2 :]
    return Forked(rank, *arguments, env=env, **dict(zip(("stdout", "stderr"), _outputs)))


class Forked:
    """What ``subprocess.Popen`` returns, for a process forked from the server."""

    def __init__(self, function, *arguments, **options):
        self._process = start(function, *arguments, **options)
        self.pid, self.kill, self.terminate = self._process.pid, self._process.kill, self._process.terminate

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("forked", timeout)
        return self.returncode

    def send_signal(self, number):
        _signal(os.kill, self.pid, number)


def _signal(send, process, number):
    """Call ``send(process, number)``; do nothing if the process has ended.

    A child would keep its id until its parent waits for it. The server waits for its processes at once.
    """
    with contextlib.suppress(ProcessLookupError):
        send(process, number)


def keep_process_groups():
    """Keep what ``destroy_process_group`` would free before torch 2.8.

    There its destructor, which holds Python's lock, waits for threads that may wait for the lock.
    """
    if not torch.distributed.is_available() or process_groups.CAN_BE_FREED:
        return
    destroy = torch.distributed.destroy_process_group

    def keeping(group=None):
        _kept.append(torch.distributed.group.WORLD if group is None else group)
        destroy(*[each for each in [group] if each is not None])

    torch.distributed.destroy_process_group = keeping


def rank(*arguments):
    """Do what ``command`` does as the first process of a session, which torchrun ends as a whole."""
    os.setsid()
    command(*arguments)


def child_run(task, parent, folder):
    """Do what ``python script_path_start.py TASK`` does in a process started by ``parent``."""
    os.getppid = lambda: parent if is_alive(parent) else 1  # it is the server otherwise
    main_module = sys.modules["__main__"] = types.ModuleType("__main__")  # otherwise that of the tests
    main_module.__file__ = script_path_start.__file__
    os.chdir(folder)
    installed = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [folder] + os.environ["PYTHONPATH"].split(os.pathsep) + installed
    sys.exit(script_path_start.main([task]))


def is_alive(process):
    """Return whether there is a process of this id."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def start(function, *arguments, **options):
    """Start ``script``, ``command``, ``torchrun`` or ``ab`` in a process; return it.

    Options: the paths of files that ``stdout`` and ``stderr`` go to (nowhere by default), and ``env``.
    """
    files = options.pop("stdout", os.devnull), options.pop("stderr", os.devnull)
    env = options.pop("env", None) or processes.environment()
    context = multiprocessing.get_context(start_method())
    process = context.Process(target=_work, args=(files, env, function, arguments), **options)
    process.start()
    return process


def run(function, *arguments, **options):
    """Run ``script``, ``command``, ``torchrun`` or ``ab`` in a process; return it finished, its output as text.

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
    end_with_the_server()
    keep_process_groups()
    for finalizer in list(weakref.finalize._registry):  # of the server, whose folders this process would remove
        finalizer.atexit = False
    _outputs[:] = files
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
    atexit.unregister(process_state._sync_all)
    atexit.register(process_state._sync_all)
    try:
        with contextlib.ExitStack() as redirected:
            device = ChildEnvironment.from_env().device
            if device is not None:  # what `sitecustomize` does in a new interpreter
                redirected.enter_context(redirect_device(device))
            try:
                function(*arguments)
            except Exception:
                _end_with_error()
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing ends without them


def _end_with_error():
    """Do what an interpreter does with an error that nothing has caught; multiprocessing calls no ``excepthook``."""
    sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
    sys.excepthook(*sys.exc_info())
    sys.exit(1)
