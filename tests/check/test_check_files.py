"""What ``check`` reads: Python, notebooks, shell; broken files; several files together."""

import io
import os

import pytest
from checked import check, notebook, rules, write

from ampcompat.cli import main
from ampcompat.static_analysis.check import check as check_paths
from ampcompat.support import files


def names(report):
    return [(use["name"], use["line"]) for use in report["uses"]]


@pytest.mark.parametrize(
    "code, expected",
    [
        ("import apex\napex.amp.initialize(m, o)\n", [("apex", 1), ("apex.amp.initialize", 2)]),
        ("import apex.amp as a\na.scale_loss\n", [("apex.amp", 1), ("apex.amp.scale_loss", 2)]),
        ("from apex import amp\nx = amp\n", [("apex.amp", 1), ("apex.amp", 2)]),
        (
            "from apex.optimizers import FusedAdam as A\nA(p)\n",
            [("apex.optimizers.FusedAdam", 1), ("apex.optimizers.FusedAdam", 2)],
        ),
        (
            "from apex.fp16_utils import *\nnetwork_to_half(m)\n",
            [("apex.fp16_utils", 1), ("apex.fp16_utils.network_to_half", 2)],
        ),
        (
            "import importlib\namp = importlib.import_module('apex.amp')\namp.initialize(m)\n",
            [("apex.amp", 2), ("apex.amp.initialize", 3)],
        ),
        ("import importlib.util\nimportlib.util.find_spec('apex')\n", [("apex", 2)]),
        ("import amp_C\namp_C.multi_tensor_scale\n", [("amp_C", 1), ("amp_C.multi_tensor_scale", 2)]),
        (
            "from apex import amp\nself.amp = amp\nself.amp.initialize(m)\n",
            [("apex.amp", 1), ("apex.amp", 2), ("apex.amp.initialize", 3)],
        ),
        ("apex = 1\nprint(apex)\nparser.add_argument('--apex')\n", []),
        ("from .apex import amp\namp.x()\n", []),
        ("from torch.cuda import amp\namp.autocast()\n", []),
        (
            "if new:\n    from torch.cuda import amp\nelse:\n    from apex import amp\n"
            "amp.autocast()\namp.initialize(m)\n",
            [("apex.amp", 4), ("apex.amp.initialize", 6)],
        ),
    ],
)
def test_every_way_to_name_a_part_of_apex(tmp_path, capsys, code, expected):
    assert names(check(tmp_path, capsys, train=code)) == expected


def test_a_name_that_another_file_of_the_project_hands_on(tmp_path, capsys):
    files = {
        "lib/__init__.py": "from .half import amp\n",
        "lib/half.py": "try:\n    from apex import amp\nexcept ImportError:\n    amp = None\n",
        "train.py": "from lib import amp\nmodel = amp.initialize(model)\n",
    }
    write(tmp_path, files)
    report = check(tmp_path, capsys)
    assert ("apex.amp.initialize", 2) in names(report)
    assert report["scripts"][0]["path"].endswith("train.py")


@pytest.mark.parametrize(
    "data",
    [
        b"print 'python 2'\nfrom apex import amp\namp.initialize(m)\n",
        b"from apex import amp\namp.initialize(m)\n)))\n",
        b"from apex import amp\namp.initialize(m)\n\x00\n",
        b"# \xe9 is Latin-1, without a coding line\nfrom apex import amp\namp.initialize(m)\nif\n",
        b"from apex import amp\namp.initialize(m)\nx = " + b"(" * 5000 + b"\n",
    ],
)
def test_a_broken_file_is_listed_with_its_uses(tmp_path, capsys, data):
    (tmp_path / "train.py").write_bytes(data)
    report = check(tmp_path, capsys)
    assert len(report["broken"]) == 1 and report["exit_code"] == 1
    assert [name for name, _ in names(report)][:2] == ["apex.amp", "apex.amp.initialize"]
    assert rules(report)[0][0] == "broken-file"


@pytest.mark.parametrize(
    "code",
    [
        "if x == 0:\n    pass\n" + "".join(f"elif x == {at}:\n    pass\n" for at in range(1, 2500)),
        "if " + " + ".join(["x"] * 2500) + ":\n    pass\n",
    ],
    ids=["elif", "sum"],
)
def test_deeply_nested_code_does_not_stop_it(tmp_path, capsys, code):
    report = check(tmp_path, capsys, train="from apex import amp\n" + code, other="from apex import amp\n")
    assert [use["path"][-8:] for use in report["uses"]] == ["other.py", "train.py"]


def test_broken_files_without_apex_do_not_matter(tmp_path, capsys):
    (tmp_path / "O1.py").write_text("x = 'O1'\nprint 1\n")
    (tmp_path / "notes.ipynb").write_text('not JSON, but "O1"')
    report = check(tmp_path, capsys)
    assert len(report["broken"]) == 2 and report["exit_code"] == 0


def test_pipes_dangling_links_and_large_files_do_not_stop_it(tmp_path, capsys):
    os.mkfifo(str(tmp_path / "pipe.py"))
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    with open(str(tmp_path / "data.py"), "wb") as file:
        file.truncate(files.LARGEST + 1)
    report = check(tmp_path, capsys)
    assert [os.path.basename(each["path"]) for each in report["broken"]] == ["data.py", "gone.py"]


def test_a_notebook_is_read_cell_by_cell(tmp_path, capsys):
    cells = (
        "!pip install apex\n!git clone https://github.com/NVIDIA/apex",
        "%matplotlib inline\nfrom apex import amp\nif True:\n    !nvidia-smi\n",
        "this is no Python",
        "%%time\nmodel, optimizer = amp.initialize(model, optimizer, opt_level='O2')",
        "%%bash\npython -m apex.parallel.multiproc train.py --opt-level O3",
    )
    (tmp_path / "train.ipynb").write_text(notebook(*cells))
    report = check(tmp_path, capsys)
    at = [(use["name"], use["cell"], use["line"]) for use in report["uses"]]
    assert at == [("apex.amp", 2, 2), ("apex.amp.initialize", 4, 2), ("apex.parallel.multiproc", 5, 2)]
    assert report["findings"] == []
    assert [(each["cell"], each["line"]) for each in report["broken"]] == [(3, 1)]
    assert sorted(level["level"] for level in report["levels"]) == ["O2", "O3"]
    assert "import ampcompat.as_apex" in report["scripts"][0]["command"]


@pytest.mark.parametrize(
    "code, expected",
    [
        ("amp.initialize(m, o)", [("O1", "Apex's default")]),
        ("amp.initialize(m, o, True, 'O3')", [("O3", "written in the call")]),
        (
            "amp.initialize(m, o, opt_level='O1' if fast else 'O2')",
            [("O1", "written in the call"), ("O2", "written in the call")],
        ),
        (
            "p.add_argument('--opt-level', default='O2')\namp.initialize(m, o, opt_level=args.opt_level)",
            [("O2", "args.opt_level, default of --opt-level")],
        ),
        ("level = 'O1'\namp.initialize(m, o, opt_level=level)", [("O1", "level, assigned")]),
        (
            "config = {'level': 'O2'}\namp.initialize(m, o, opt_level=config['level'])",
            [("O2", "an expression, in a dict")],
        ),
        ("amp.initialize(m, o, opt_level=args.level)", [("?", "args.level")]),
        ("amp.initialize(m, o, **options)", [("?", "**keywords")]),
    ],
)
def test_levels(tmp_path, capsys, code, expected):
    report = check(tmp_path, capsys, train="from apex import amp\n" + code + "\n")
    assert [(level["level"], level["source"]) for level in report["levels"]] == expected


def test_the_level_that_a_shell_script_passes_and_the_script_that_it_launches(tmp_path, capsys):
    (tmp_path / "run.sh").write_text(
        "python -m torch.distributed.launch --nproc_per_node=8 \\\n  tools/train.py --amp_opt_level O2\n"
    )
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "train.py").write_text(
        "from apex import amp\namp.initialize(m, opt_level=args.amp_opt_level)\n"
    )
    report = check(tmp_path, capsys)
    assert ("O2", "passed in a command") in [(level["level"], level["source"]) for level in report["levels"]]
    assert report["scripts"][0]["command"].startswith("torchrun")


def test_text_says_first_whether_it_runs_and_how(tmp_path, capsys):
    write(tmp_path, {"train.py": "from apex import amp\namp.initialize(m, o)\n"})
    assert main(["check", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Runs unchanged."
    assert f"ampcompat run {tmp_path}/train.py ARGS" in lines[3]
    assert f"{tmp_path}/train.py:2 apex.amp.initialize: supported" in "\n".join(lines)


def test_brief_leaves_the_list_of_uses_out_and_other_folders_are_said_to_use_nothing(tmp_path, capsys):
    write(tmp_path, {"a/train.py": "from apex import amp\n", "b/train.py": "print(1)\n"})
    assert main(["check", str(tmp_path / "a"), "--brief"]) == 0
    assert "Every use" not in capsys.readouterr().out
    assert main(["check", str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.startswith("Nothing of Apex is used here.\n\nUses of Apex: 0 in 0 of 1 files")


def test_a_folder_without_files_that_it_reads_is_no_answer(tmp_path, capsys):
    write(tmp_path, {"weights.bin": "apex"})
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("No file to check: ")


def test_a_command_can_be_pasted_where_a_path_has_spaces(tmp_path, capsys):
    write(tmp_path, {"my scripts/train.py": "from apex import amp\namp.initialize(m, o)\n"})
    assert main(["check", str(tmp_path / "my scripts")]) == 0
    assert f"ampcompat run '{tmp_path}/my scripts/train.py' ARGS\n" in capsys.readouterr().out


def test_progress_is_told_after_each_file(tmp_path):
    write(tmp_path, {"a.py": "1\n", "b.py": "2\n"})
    seen = []
    check_paths([str(tmp_path)], lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_a_terminal_gets_the_progress_and_a_file_does_not(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    write(tmp_path, {f"{name}.py": "1\n" for name in "abcd"})
    monkeypatch.setattr("ampcompat.cli.check_command._INTERVAL", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        assert main(["check", str(tmp_path)]) == 0
        assert ("checking 1/4 files" in stream.getvalue() and stream.getvalue().endswith("\r\x1b[K")) is shown


CUDA_USES = [
    "model.cuda()\n",
    "device = torch.device('cuda:0')\n",
    "assert torch.cuda.is_available(), 'this needs a GPU'\nmodel.cuda()\n",
    "if not torch.cuda.is_available():\n    raise SystemExit('this needs a GPU')\n",
    "if not torch.cuda.is_available():\n    print('no GPU')\n    sys.exit(1)\n",
    "torch.cuda.set_device(0)\n",
    "torch.distributed.init_process_group('nccl')\n",
]


def project_with(line, elsewhere):
    """Return the files of a project with a line in its script, or in a module that the script imports."""
    script = "import torch\nfrom apex import amp\nimport models\namp.initialize(model, optimizer)\n"
    return {"train.py": script, "models.py": line} if elsewhere else {"train.py": script + line}


@pytest.mark.parametrize("line", CUDA_USES, ids=CUDA_USES)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_script_that_uses_cuda_gets_a_command_for_machines_without_it(tmp_path, capsys, line, elsewhere):
    write(tmp_path, project_with(line, elsewhere))
    assert main(["check", str(tmp_path)]) == 0
    path = tmp_path / "train.py"
    assert f"  without a GPU: ampcompat run --device cpu {path} ARGS\n" in capsys.readouterr().out
    report = check(tmp_path, capsys)
    assert report["scripts"][0]["without_gpu"] == f"ampcompat run --device cpu {path} ARGS"


CUDA_CHOICES = [
    "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\nmodel.to(device)\n",
    "use_cuda = not args.no_cuda and torch.cuda.is_available()\nmodel.cuda() if use_cuda else model\n",
    "from torch import cuda\nif cuda.is_available():\n    model.cuda()\n",
    "if not torch.cuda.is_available():\n    print('on the CPU')\nelse:\n    model.cuda()\n",
    "# cuda\n",
]


@pytest.mark.parametrize("line", CUDA_CHOICES, ids=CUDA_CHOICES)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_script_that_asks_for_cuda_or_does_not_use_it_gets_no_second_command(tmp_path, capsys, line, elsewhere):
    report = check(write(tmp_path, project_with(line, elsewhere)), capsys)
    assert report["scripts"][0]["without_gpu"] == "" and report["scripts"][0]["command"].endswith("train.py ARGS")


@pytest.mark.parametrize(
    "content, reason",
    [
        (notebook("import torch\n")[:-40].encode(), "JSONDecodeError"),
        (b"", "JSONDecodeError"),
        (notebook("import torch\n").encode("utf-16"), "JSONDecodeError"),
        (b"{}", "KeyError"),
        (b'{"cells": [1]}', "AttributeError"),
    ],
    ids=["cut off", "empty", "UTF-16", "no cells", "no cell"],
)
def test_a_damaged_notebook_is_listed_as_unreadable(tmp_path, capsys, content, reason):
    (tmp_path / "sound.ipynb").write_text(notebook("import torch\n"))
    (tmp_path / "damaged.ipynb").write_bytes(content)
    report = check(tmp_path, capsys)
    assert [(os.path.basename(each["path"]), each["mentions_apex"]) for each in report["broken"]] == [
        ("damaged.ipynb", False)
    ]
    assert "not a notebook: " + reason in report["broken"][0]["reason"]
    assert main(["check", str(tmp_path)]) == report["exit_code"]
    assert "Could not be read or parsed:\n  {}:1: not a notebook".format(tmp_path / "damaged.ipynb") in (
        capsys.readouterr().out
    )


def test_a_notebook_has_no_option_for_a_device(tmp_path, capsys):
    write(tmp_path, {"train.ipynb": notebook("from apex import amp\namp.initialize(m.cuda(), o)")})
    assert check(tmp_path, capsys)["scripts"][0]["without_gpu"] == ""
