"""The command ``ampcompat migrate``, and the two examples, old and new in processes of their own."""

import os
import re
import sys

import migrated_scripts as scripts
import pytest
import torch
from helpers import forked
from helpers.half_kernels import trains_in
from helpers.processes import ROOT, environment

from ampcompat.cli import main
from ampcompat.support.child_environment import ChildEnvironment

pytest.importorskip("libcst", reason="the extra `migrate` has LibCST")
if not hasattr(getattr(torch, "amp", None), "GradScaler") or not trains_in(torch.float16):
    pytest.skip("migrated scripts need torch 2.3 or later", allow_module_level=True)


def test_a_diff_is_printed_and_the_file_stays(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text(scripts.SIMPLE)
    assert main(["migrate", str(path)]) == 0
    out = capsys.readouterr().out
    assert "-from apex import amp  # mixed precision\n" in out and "+        scaler.scale(loss).backward()" in out
    assert path.read_text() == scripts.SIMPLE


def test_write_and_output(tmp_path, capsys):
    path, other = tmp_path / "train.py", tmp_path / "other.py"
    path.write_text(scripts.TRAINER)
    other.write_text("mine\n")
    assert main(["migrate", str(path), "-o", str(other), "--force"]) == 0
    printed = capsys.readouterr()
    assert path.read_text() == scripts.TRAINER and "note: O2 becomes autocast" in printed.err
    assert printed.out == f"wrote {other}; compare: ampcompat ab --against {other} {path}\n"
    assert other.read_text().count("GradScaler(") == 1
    assert main(["migrate", "--write", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    assert path.read_text() == other.read_text() != scripts.TRAINER


def test_a_second_run_has_nothing_to_migrate(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text(scripts.SIMPLE)
    assert main(["migrate", "--write", str(path)]) == 0
    new = path.read_text()
    capsys.readouterr()
    for more in ([], ["--write"], ["-o", str(tmp_path / "other.py")]):
        assert main(["migrate", str(path)] + more) == 0
        printed = capsys.readouterr()
        assert printed.out == f"nothing to migrate: {path} does not use Apex\n" and printed.err == ""
    assert path.read_text() == new and not (tmp_path / "other.py").exists()


def test_a_second_run_lists_what_the_first_left(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("from apex import amp\nmodel = amp.initialize(model)\namp.register_half_function(m, 'f')\n")
    assert main(["migrate", "--write", str(path)]) == 1
    new = path.read_text()
    told = "train.py: left: apex.amp.register_half_function, in line 4 of the new script\n"
    assert told in capsys.readouterr().err
    assert main(["migrate", "--write", str(path)]) == 1 and path.read_text() == new
    printed = capsys.readouterr()
    assert f"{path}:3: left: apex.amp.register_half_function\n" in printed.err
    assert printed.out.startswith("nothing to rewrite automatically")


def test_a_use_that_is_left_is_named_with_its_lines_and_what_torch_has(tmp_path, capsys):
    path, new = tmp_path / "train.py", tmp_path / "new.py"
    path.write_text(
        "from apex import amp\nfrom apex.optimizers import FusedAdam\n"
        "optimizer = FusedAdam(params, 1e-3, True)\nmodel, optimizer = amp.initialize(model, optimizer)\n"
    )
    assert main(["migrate", str(path), "-o", str(new)]) == 1
    printed = capsys.readouterr()
    lines = [at for at, line in enumerate(new.read_text().splitlines(), 1) if "FusedAdam" in line and "#" not in line]
    assert "apex.optimizers.FusedAdam, in lines {} and {} of the new script: ".format(*lines) in printed.err
    assert "write torch.optim.AdamW" in printed.err and printed.out == f"wrote {new}\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("x = 1\n\nprint 1\nfrom apex import amp\n", "train.py is not Python 3: line 3: "),
        ("def f(:\n    pass\n", "line 1: invalid syntax: def f(:\n"),
        ("x = 1\0\n", "null bytes"),
        ("import apex\n", "does not call amp.initialize"),
    ],
)
def test_what_cannot_be_migrated_is_one_line(tmp_path, error_line, text, message):
    path = tmp_path / "train.py"
    path.write_text(text)
    assert message in error_line("migrate", path)


def test_without_libcst_the_line_says_what_to_install(tmp_path, error_line, monkeypatch):
    for name in [each for each in sys.modules if each.startswith("ampcompat.static_analysis.migrate")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    told = "ampcompat migrate: error: this needs LibCST: pip install libcst.\n"
    assert error_line("migrate", tmp_path / "train.py") == told


def numbers(text, pattern):
    return [float(number) for number in re.findall(pattern, text)]


def test_the_imagenet_example_migrates_trains_alike_and_resumes_an_old_checkpoint(tmp_path):
    old, new = os.path.join(ROOT, "examples", "imagenet.py"), tmp_path / "new.py"
    assert main(["migrate", old, "-o", str(new)]) == 0
    assert "import apex" not in new.read_text() and "from apex" not in new.read_text()
    env = environment(**ChildEnvironment(device="cpu").to_env())  # stands in for CUDA, which both scripts need
    small = "--images 96 --size 12 --width 8 -p 2 -j 0 --lr 0.1 --deterministic --opt-level O1".split()
    path, losses = str(tmp_path / "checkpoint.pt"), []
    for script, more in ((old, ["--epochs", "1", "--checkpoint", path]), (new, ["--epochs", "1"])):
        done = forked.run(forked.command, script, *(small + more), env=env)
        assert done.returncode == 0, done.stderr
        losses.append(numbers(done.stdout, r"\* Loss ([\d.]+)"))
    assert len(losses[0]) == 1 and losses[1] == pytest.approx(losses[0], rel=0.02)
    done = forked.run(forked.command, new, *(small + ["--epochs", "2", "--resume", path]), env=env)
    assert done.returncode == 0 and "=> loaded checkpoint" in done.stdout, done.stderr


DEEP = {
    "parentheses": "a = " + "(" * 5000 + "1" + ")" * 5000,
    "lists": "a = " + "[" * 150 + "1" + "]" * 150,
    "sum": "a = " + "+".join(["1"] * 900),
    "long sum": "a = " + "+".join(["1"] * 20000),
    "elif": "if a: pass\n" + "elif b: pass\n" * 3000,
    "calls": "a = model" + "(1)" * 3000,
}


@pytest.mark.parametrize("level", [None, "O1"])
@pytest.mark.parametrize("name", sorted(DEEP))
def test_code_that_is_nested_too_deeply_is_one_line(tmp_path, error_line, name, level):
    """LibCST would raise RecursionError, or end the process."""
    path = tmp_path / "deep.py"
    path.write_text("from apex import amp\n" + DEEP[name] + "\n")
    told = error_line("migrate", *(["--to-level", level] if level else []), path)
    assert any(words in told for words in ("nested too deeply", "levels deep", "too many nested parentheses"))


@pytest.mark.skipif(os.name == "nt", reason="pipes and devices of POSIX")
def test_pipes_devices_and_large_files_are_not_read(tmp_path, error_line):
    os.mkfifo(str(tmp_path / "pipe.py"))
    (tmp_path / "large.py").write_bytes(b"#" * ((128 << 10) + 1))
    expected = {
        "pipe.py": "a pipe or a device",
        "/dev/zero": "a pipe or a device",
        "large.py": "it has more than 0.1 MiB; --max-size allows more",
    }
    for path, says in expected.items():
        assert says in error_line("migrate", tmp_path / path)
    assert main(["migrate", "--max-size", "0.2", str(tmp_path / "large.py")]) == 0
