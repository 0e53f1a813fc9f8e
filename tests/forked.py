"""Run scripts and command lines in processes forked from a server that has imported torch and done nothing else.

Importing torch again would take most of their time. A test of what is imported, of options of the interpreter or of
the processes that a script starts needs a real one: ``processes.python``.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile

import processes
import pytest

#: What the server imports. ``torch._dynamo`` is what torch's optimizers and wrappers import when they are first used.
PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "ampcompat.amp", "ampcompat.apex.parallel"]


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


def start(function, *arguments, **options):
    """Start ``script`` or ``command`` in a process; return it.

    Options: the paths of files that ``stdout`` and ``stderr`` go to (nowhere by default), and ``env``.
    """
    files = options.pop("stdout", os.devnull), options.pop("stderr", os.devnull)
    env = options.pop("env", None) or processes.environment()
    context = multiprocessing.get_context(start_method())
    process = context.Process(target=_work, args=(files, env, function, arguments), **options)
    process.start()
    return process


def run(function, *arguments, **options):
    """Run ``script`` or ``command`` in a process; return it finished, its output as text. Options: ``env``."""
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        process = start(function, *arguments, stdout=files[0], stderr=files[1], **options)
        process.join()
        texts = []
        for path in files:
            with open(path, encoding="utf-8") as file:
                texts.append(file.read())
    return subprocess.CompletedProcess(arguments, process.exitcode, *texts)


def _work(files, env, function, arguments):
    for descriptor, path in zip((1, 2), files):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()  # the server's, which has been there since the first test that used it
    os.environ.update(env)
    try:
        function(*arguments)
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing ends without them
