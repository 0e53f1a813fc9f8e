"""A wrong command line is one line on stderr and exit code 2, whatever the command: nothing is run, nothing written.

So is one that would write over a file that it reads, or two results into one file.
"""

import importlib.util
import os
import shlex
import sys

import pytest
from helpers.made_reports import good_report

from ampcompat.cli import main
from ampcompat.support.torch_compat import fake_tensors, features


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the working folder: a script, a link to it, one with an error, a report and damaged files."""
    (tmp_path / "t.py").write_text("from apex import amp\nmodel = amp.initialize(model)\n")
    (tmp_path / "plan").mkdir()
    for path in (tmp_path / "r.json", tmp_path / "plan" / "O0.json"):
        good_report(20).save(str(path))
    (tmp_path / "c.pt").write_bytes(b"PK")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.py").write_text("import torch\n\nfor step in range(3)\n    pass\n")
    (tmp_path / "link.py").symlink_to("t.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    """Return the files of a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


NO_COMMAND = [
    ("t.py --lr 1", "'t.py' is not a command; did you mean: ampcompat run t.py --lr 1\n"),
    ("rnu t.py", "'rnu' is not a command; did you mean: ampcompat run t.py\n"),
    ("absent.py", "'absent.py' is not a command; choose from run, ab, check, audit, forecast, estimate"),
    ("frobnicate", "frobnicate"),
    ("--no-such-option", "--no-such-option"),
    ("--opt-level O1 t.py", "come after it: ampcompat run --opt-level O1 t.py\n"),
    ("--steps 5 ab t.py", "come after it: ampcompat ab --steps 5 t.py\n"),
    ("--levels O0,O1 t.py", "come after it: ampcompat COMMAND --levels O0,O1 t.py\n"),
]
SCRIPTS = [
    ("", "no script given"),
    ("nowhere.py", "script not found: 'nowhere.py'"),
    ("-", "a script from stdin cannot be"),
]
RUN = [
    (".", "is a directory"),
    ("-m", "no module given"),
    ("-m no_such_module_anywhere", "no module named 'no_such_module_anywhere'"),
    ("--opt-level 01 t.py", "the capital letter O, not the number zero"),
    ("--opt-level o1 t.py", "'o1' is not one of O0, O1, O2, O3, O4, O5; write O1\n"),
    ("--opt-level 2 t.py", "; write O2\n"),
    ("--opt-level mixed t.py", "'mixed' is not one of O0, O1, O2, O3, O4, O5\n"),
    ("--opt-level", "expected one argument"),
    ("--backend cuda t.py", "'patched'"),
    ("--verbosity loud t.py", "not a whole number"),
    ("--verbosity -1 t.py", "--verbosity"),
    ("--dtypes float32 t.py", "such as float32,float64"),
    ("--dtypes float64,float32 t.py", "'float64,float32' is not LOW,HIGH"),
    ("--dtypes half,float t.py", "--dtypes"),
    ("--opt-levl O1 t.py", "unrecognized arguments: --opt-levl; did you mean --opt-level?\n"),
    ("--backends=native t.py", "unrecognized arguments: --backends=native; did you mean --backend?\n"),
    ("--learning-rate 1 t.py", "unrecognized arguments: --learning-rate\n"),
    ("--stats-every 2 t.py", "needs a file to write to"),
    ("--stats-file f.csv t.py", "needs --stats-every N"),
    ("--op-stats-file none/f.json t.py", "the folder does not exist or is not writable"),
    ("--device cuda t.py", "'cuda' (choose from"),
    ("--device", "argument --device: expected one argument"),
    ("t.py {local_rank}", "start this command with torchrun"),
    ("t.py --out=runs/{local_rank}/weights", "start this command with torchrun"),
]
RUN += [
    (f"--device {name} t.py", f"--device {name}: not available to this torch, only cpu")
    for name in ("mps", "xpu")
    if name not in features.available_devices()
]
AB = [
    ("--levels O0,01 t.py", "the capital letter O, not the number zero"),
    ("--levels O1,O1 t.py", "contains a level twice"),
    ("--baseline O9 t.py", "'O9' is not one of"),
    ("--steps 0 t.py", "not a whole number from 1 up"),
    ("--repeats many t.py", "not a whole number"),
    ("--seed -1 t.py", "--seed"),
    ("--json no/such/folder/x.json t.py", "cannot write"),
    ("--png charts.gif t.py", "charts.gif: its extension must be one of .png, .svg, .pdf"),
    ("--jobs 2 t.py", "unrecognized arguments: --jobs"),
    ("--plan here --json x.json t.py", "--plan cannot be combined with --json: it runs nothing"),
    ("--plan /dev/null/here t.py", "cannot write /dev/null/here: Not a directory."),
    ("--plan 'a\nplan' t.py", "has line breaks; use folders without them"),
    ("--plan 'a\rplan' t.py", "has line breaks; use folders without them"),
    ("--resume a.json --json b.json t.py", "--resume writes the report too"),
    ("--resume c.pt t.py", "not JSON"),
    ("--find-keep-fp32 O2 --no-control t.py", "--find-keep-fp32 cannot be combined with --no-control"),
    (
        "--find-keep-fp32 O2 --variant 'a: --opt-level O1' t.py",
        "--find-keep-fp32 cannot be combined with --variant: it searches for the layers of one level",
    ),
    ("--variant 'x: keep_fp32=[big' t.py", "is not a list of layers"),
    ("--variant 'x: --keep-fp32 big,,up' t.py", "is not a list of layers"),
    ("--variant 'without a colon' t.py", "is not NAME: OPTIONS"),
    ("--variant 'a/b: --opt-level O1' t.py", "letters, digits"),
    ("--variant 'x: looss_scale=2' t.py", "unknown option 'looss_scale=2'"),
    ("--variant 'x: --levels O1' t.py", "unknown option '--levels'"),
    ("--variant 'x: hysteresis=a' t.py", "hysteresis='a' is not a whole number"),
    ("--variant 'x: cast_model_type=int8' t.py", "is not one of float16"),
    ("--variant 'x: script=nowhere.py' t.py", "script not found"),
    ("--variant 'x: --opt-level O9' t.py", "'O9' is not one of"),
    ("--variant 'unchanged: --opt-level O1' t.py", "have the name 'unchanged'"),
    ("t.py --local_rank={local_rank}", "add --launcher 'torchrun"),
    ("broken.py", "broken.py, line 3: SyntaxError: "),
    ("broken.py --lr 1", ": for step in range(3)\n"),
]
GATES = [
    ("--fail-on refuted", "--fail-on refuted needs --tolerance, such as --tolerance 0.01"),
    ("--fail-on worse", "'worse' is not one of rejected, refuted, not-shown, failed"),
    ("--tolerance '1 %'", "is not a share between 0 and 1"),
    ("--tolerance 0", "is not a share between 0 and 1"),
]
FORECAST = [
    ("--steps 1 t.py", "whole number from 2 up"),
    ("--json /nowhere/at/all.json t.py", "cannot write"),
]
AUDIT = [("--steps 0 t.py", "whole number from 1 up"), ("--fail-on sometimes t.py", "invalid choice")]
ESTIMATE = [
    ("t.py {batch}", "give --memory"),
    ("--memory 16 t.py", "GiB"),
    ("--opt-level O7 t.py", "not one of O0"),
]
CHECK = [
    ("/nowhere", "no such file or folder: '/nowhere'"),
    ("", "required: PATH"),
    ("--json /nowhere/f t.py", "cannot write '/nowhere/f'"),
]
SELFTEST = [
    ("--device abacus", "--device abacus: not available to this torch, only cpu"),
    ("--device cpu --json /no/such/folder/f.json", "argument --json: cannot write '/no/such/folder/f.json': "),
    ("more", "unrecognized arguments: more"),
]
OTHERS = [
    ("migrate t.py --write -o y", "choose one"),
    ("migrate t.py -o r.json", "r.json exists; give --force to replace it\n"),
    ("report absent.json", "cannot read"),
    ("report r.json c.pt", "unrecognized arguments: c.pt"),
    ("report binary.json", "cannot read binary.json: it is not UTF-8 text.\n"),
    ("report r.json --html absent/page.html", "cannot write"),
    ("report r.json --png absent/page.png", "cannot write"),
]
ROWS = NO_COMMAND + OTHERS
TABLES = {"run": RUN, "ab": AB, "forecast": FORECAST, "audit": AUDIT, "check": CHECK, "selftest": SELFTEST}
for command, rows in TABLES.items():
    ROWS += [(command + " " + arguments, says) for arguments, says in rows]
for command in ("run", "ab", "forecast", "audit"):
    ROWS += [(f"{command} {arguments}", says) for arguments, says in SCRIPTS[: 2 if command == "run" else 3]]
for command in ("ab {} t.py", "report r.json {}"):
    ROWS += [(command.format(arguments), says) for arguments, says in GATES]
if importlib.util.find_spec("libcst") is not None:
    ROWS.append(("migrate absent.py", "cannot read"))
if features.is_version_within(oldest=fake_tensors.OLDEST):
    ROWS += [("estimate " + arguments, says) for arguments, says in ESTIMATE]

#: Commands that would write over a file that they read.
OVERWRITING = """
    check t.py --json t.py
    check t.py --json ./t.py
    check . --json t.py
    check t.py --json link.py
    report r.json --markdown r.json
    report r.json --latex r.json
    report r.json --html r.json
    report plan --markdown plan/O0.json
    report r.json --markdown new --latex new
    migrate t.py -o t.py --force
    migrate link.py -o t.py --force
    ab --json t.py t.py
    ab --markdown t.py --against t.py link.py
    ab --json new --markdown new t.py
    forecast --json t.py t.py
    run --op-stats-file t.py t.py
"""
ROWS += [(command, "; give another name\n") for command in OVERWRITING.strip().splitlines()]


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
@pytest.mark.parametrize("command, says", ROWS, ids=[command.strip() for command, _ in ROWS])
def test_a_wrong_command_line_is_one_line_and_changes_no_file(folder, error_line, command, says):
    before, variables, (name, *_) = contents(folder), dict(os.environ), command.split()
    line = error_line(*shlex.split(command))
    prefix = "ampcompat: error: " if (command, says) in NO_COMMAND else f"ampcompat {name}: error: "
    assert line.startswith(prefix) and says in line
    assert contents(folder) == before and dict(os.environ) == variables


@pytest.mark.skipif(sys.version_info < (3, 8), reason="importlib.metadata is of Python 3.8")
def test_a_search_for_layers_with_a_torch_without_forecasts_is_refused_before_the_first_run(
    folder, error_line, monkeypatch
):
    from importlib import metadata

    monkeypatch.setattr(metadata, "version", {"torch": "2.0.1+cpu"}.__getitem__)
    line = error_line("ab", "--find-keep-fp32", "O2", "t.py")
    assert "starts from a forecast, which needs torch 2.1 or newer; this is 2.0.1+cpu" in line


def test_a_result_of_an_earlier_check_is_replaced(folder):
    assert main(["check", ".", "--json", "found.json"]) == main(["check", ".", "--json", "found.json"])
    assert (folder / "found.json").read_text().startswith("{")
