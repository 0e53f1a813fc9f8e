"""``ampcompat run``: a script runs as under plain Python, apart from what ``import apex`` imports."""

import json
import os

import pytest
import torch
from helpers import forked, half_kernels
from helpers.processes import ROOT, RUN, environment, python, run_in_process

from ampcompat.cli import main, run_command
from ampcompat.opt_levels import OPT_LEVELS

STATE = """
'''The script's own docstring.'''
import json, os, sys
main = sys.modules["__main__"]
print(json.dumps([
    sys.argv, sys.path[0], __name__, __file__, __doc__, __package__, repr(type(__loader__)),
    None if __spec__ is None else __spec__.name, main.__dict__ is globals(), os.getcwd(),
    list(sys.warnoptions), sys.flags.optimize, sys.stdout.write_through, sys.stdin.read(),
]))
"""


@pytest.mark.parametrize(
    "options",
    [(), ("-W", "error::DeprecationWarning", "-u"), ("-O",)],
    ids=["plain", "-W -u", "-O"],
)
@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_a_script_runs_in_the_same_environment_as_under_plain_python(tmp_path, script, module, options):
    script(STATE, "inner/script.py")
    target = ["-m", "inner.script"] if module else [os.path.join("inner", "script.py")]
    target += ["--opt-level", "O9", "-m", "--", "é"]
    states = []
    for prefix in ((), RUN + ("--opt-level", "O2")):
        done = python(*(options + prefix + tuple(target)), cwd=str(tmp_path), input="from stdin")
        assert done.returncode == 0, done.stderr
        states.append(json.loads(done.stdout))
    assert states[0] == states[1]
    assert states[1][-1] == "from stdin"


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit(7)",
        "import sys; sys.exit('a sentence')",
        "import sys; sys.exit()",
        "import os; os._exit(4)",
        "def inner():\n    raise ValueError('no')\ninner()",
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('chained') from error",
        "this is not Python",
        "raise KeyboardInterrupt",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit; atexit.register(print, 'last words'); raise SystemExit(3)",
        "import sys; sys.excepthook = lambda *a: print('my hook', a[1]); raise ValueError('no')",
    ],
)
def test_exit_codes_and_tracebacks_are_the_scripts_own(script, source):
    path = script(source)
    alone, under = python(path), python(*(RUN + (path,)))
    assert (under.returncode, under.stdout, under.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def test_without_a_command_it_prints_the_help(capsys):
    assert main([]) == 0
    assert "run a script for Apex, unchanged" in capsys.readouterr().out


def test_the_launcher_of_apex_runs_as_a_module(script):
    path = script("""
        import os, sys
        from apex import amp
        print(amp.__name__, sys.argv[1:], os.environ["RANK"])
    """)
    launcher = ("-m", "apex.parallel.multiproc", path, "--lr", "1", "--world-size", "1")  # its rank is a real process
    done = forked.run(forked.command, *launcher)
    assert done.stdout == "apex.amp ['--lr', '1', '--world-size', '1', '--rank', '0'] 0\n", done.stderr


@pytest.mark.parametrize(
    "command",
    [
        RUN,
        (
            "-c",
            "import sys; from ampcompat.abtest.running import subprocess_child; "
            "subprocess_child.run_script(sys.argv[1:])",
        ),
    ],
    ids=["run", "ab"],
)
def test_the_rank_that_torchrun_sets_replaces_its_name_in_arguments(script, command):
    path = script("import sys; print(sys.argv[1:])")
    arguments = (path, "--local_rank={local_rank}", "{local_rank}", "{run}")
    done = python(*command, *arguments, env=environment(LOCAL_RANK="3"))
    assert done.stdout == "['--local_rank=3', '3', '{run}']\n", done.stderr


@pytest.mark.parametrize(
    "flag, options, says",
    [("-E", (), "use `ampcompat install`"), ("-S", ("--device", "cpu"), "Python was started with -S")],
)
def test_an_interpreter_that_ignores_what_run_tells_the_script_is_an_error_in_one_line(script, flag, options, says):
    # -E hides this test's PYTHONPATH too, so ampcompat has to be in the current folder.
    done = python(flag, *RUN, *options, script("print('it ran')"), cwd=ROOT)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and says in done.stderr


def test_a_checkout_in_the_current_folder_is_enough(script):
    path = script("import apex, sys, ampcompat; print(apex.__file__, 'torch' in sys.modules)")
    env = environment()
    del env["PYTHONPATH"]
    done = python(*(RUN + (path,)), cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [os.path.join(ROOT, "ampcompat", "apex", "site", "apex", "__init__.py"), "False"]


def test_an_apex_next_to_the_script_gets_a_warning(script):
    script("name = 'mine'", "apex/__init__.py")
    done = python(*(RUN + (script("import apex; print(apex.name)"),)))
    assert done.stdout == "mine\n"
    assert "hides ampcompat's apex" in done.stderr and len(done.stderr.splitlines()) == 1


def test_an_installed_apex_is_not_used(script, tmp_path):
    site = tmp_path / "site-packages"
    script("raise RuntimeError('the real Apex was loaded')", "site-packages/apex/__init__.py")
    env = environment(PYTHONPATH=os.pathsep.join([str(site), ROOT]))
    done = python(*(RUN + (script("import apex; print(apex.__doc__)", "elsewhere/script.py"),)), env=env)
    assert done.stdout.startswith("ampcompat's replacement"), done.stderr


def test_child_processes_import_apex_and_unpickle_classes_of_main(script):
    path = script(
        """
        import multiprocessing, subprocess, sys

        import apex

        class Payload:
            def __init__(self, number):
                self.number = number

        def where(payload):
            import apex
            return apex.__file__, Payload(payload.number + 1)

        if __name__ == "__main__":
            mine = apex.__file__
            for method in multiprocessing.get_all_start_methods():
                with multiprocessing.get_context(method).Pool(1) as pool:
                    theirs, payload = pool.map(where, [Payload(1)])[0]
                    assert theirs == mine and payload.number == 2, method
            child = subprocess.check_output([sys.executable, "-c", "import apex; print(apex.__file__)"])
            assert child.decode().strip() == mine
            print("all found")
        """
    )
    done = python(*(RUN + (path,)))
    assert done.stdout == "all found\n", done.stderr


def test_options_count_on_every_rank_of_a_launcher(script, tmp_path):
    # Started with the variables that torchrun sets; test_imagenet.py starts torchrun itself.
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    path = script(
        """
        import os, sys, torch
        from apex import amp

        rank = int(os.environ["RANK"])
        torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
        one = torch.ones(1)
        torch.distributed.all_reduce(one)
        model = torch.nn.Linear(2, 1)
        model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level="O0")
        print("rank %d: %d %s" % (rank, one.item(), amp._amp_state.opt_properties.opt_level))
        torch.distributed.destroy_process_group()
        """
    )
    command, processes = ("--opt-level", "O5", path, str(tmp_path / "meeting")), []
    for rank in "01":
        env = environment(RANK=rank, WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo", **half_kernels.stand_in())
        processes.append(forked.start(forked.command, *command, stdout=str(tmp_path / rank), env=env))
    for process in processes:
        process.join()
    printed = [(tmp_path / rank).read_text() for rank in "01"]
    assert [text.splitlines()[-1] for text in printed] == ["rank 0: 2 O5", "rank 1: 2 O5"]
    by_gloo = [line for line in printed[1].splitlines() if line.startswith("[Gloo]")]  # of torch 2.8
    assert "Selected optimization level O5" in printed[0]
    assert len(printed[1].splitlines()) == 1 + len(by_gloo)  # notices: rank 0's


@pytest.mark.parametrize(
    "options, printed",
    [
        (("--backend", "patched"), "O2 0 torch.float16 torch.float32 {torch.float32}\n"),
        (("--dtypes", "float32,float64"), "O2 0 torch.float32 torch.float64 {torch.float64}\n"),
    ],
)
def test_options_override_the_script(script, capsys, monkeypatch, options, printed):
    path = script(
        """
        import torch
        from apex import amp
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=1)
        state, masters = amp._amp_state, {param.dtype for param in amp.master_params(optimizer)}
        print(state.opt_properties.opt_level, state.verbosity, model[0].weight.dtype, model[1].weight.dtype, masters)
        """
    )
    monkeypatch.delenv("AMPCOMPAT_DTYPES", raising=False)
    run_in_process(monkeypatch, "--opt-level", "O2", "--verbosity", "0", *options, path)
    assert capsys.readouterr().out == printed


def test_commands_that_run_a_script_or_read_files_do_not_import_torch():
    names = ("run", "ab", "audit", "forecast", "estimate", "check", "migrate", "report", "install")
    modules = ", ".join(f"ampcompat.cli.{name}_command" for name in names)
    supervisor = "ampcompat.abtest.running.subprocess_supervisor"
    done = python("-c", f"import sys, {modules}, {supervisor}; print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_its_levels_are_those_of_opt_levels():
    assert run_command.LEVELS == tuple(OPT_LEVELS)


@pytest.mark.parametrize(
    "source, arguments, note",
    [
        (
            "",
            ["--device", "cpu", "--backend=native"],
            "the script gets --device, --backend: options of `ampcompat run`",
        ),
        ("parser.add_argument('--device')", ["--device", "cpu"], None),
        ("", ["--help", "--lr", "1"], None),
    ],
)
def test_an_option_behind_a_script_without_it_is_pointed_out_at_once(
    tmp_path, capsys, monkeypatch, source, arguments, note
):
    (tmp_path / "train.py").write_text(source)
    monkeypatch.setattr(run_command, "_exec", lambda command: 0)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert main(["run", str(tmp_path / "train.py")] + arguments) == 0
    told = capsys.readouterr().err
    assert (note in told and "come before the script" in told) if note else "note" not in told
