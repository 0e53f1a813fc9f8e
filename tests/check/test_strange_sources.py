"""``check`` of strangers' files: in time proportional to the size of the file."""

import pytest
from helpers.counted_calls import calls

from ampcompat.cli import main
from ampcompat.static_analysis.check import check

HEAD = (
    "import torch\nfrom apex import amp\nmodel = torch.nn.Linear(1, 1)\n"
    "opt = torch.optim.SGD(model.parameters(), lr=1)\n"
    "model, opt = amp.initialize(model, opt, opt_level='O1')\n"
)
BLOCK = "with amp.scale_loss(loss, opt) as s:\n    s.backward()\n"
#: name of the file -> what is repeated in it, and what comes before and after.
REPEATED = {
    "blocks.py": (HEAD, BLOCK, ""),
    "lines.py": (HEAD, "x = 1\n", BLOCK),
    "initialize.py": (HEAD, "model, opt = amp.initialize(model, opt)\nopt = torch.optim.SGD(p)\n", BLOCK),
    "returns.py": (HEAD + "def f():\n", "    if a: return\n", BLOCK),
    "saves.py": (HEAD, "x = {}\ntorch.save(x, 'f')\n", BLOCK),
    "regions.py": ("import torch\n", 'with torch.autocast("cuda"):\n    x = m(x)\nx.backward()\n', ""),
    "wide.py": (HEAD + "x = [", "1, ", "]\n"),
    "torn.py": (HEAD + "import ", "a ", "!\n"),
    "scripts.sh": ("torchrun ", "a/", "\napex\n"),
    "module.sh": ("-m apex", ".a", "!\n"),
    "level.sh": ("apex ", "--opt_level ", "\n"),
    "dashes.sh": ("apex ", "-", "\n"),
    "cells.ipynb": ('{"cells": [', '{"cell_type": "code", "source": "apex.amp(x)"}, ', "{}]}"),
}


LINES = [name for name in sorted(REPEATED) if name.endswith(".sh") or name == "torn.py"]


def calls_of_check(path, text):
    path.write_text(text)
    return calls(check, [str(path)])


@pytest.mark.parametrize("name", sorted(set(REPEATED) - set(LINES)))
def test_four_times_the_file_takes_at_most_five_times_the_calls(tmp_path, name):
    before, repeated, after = REPEATED[name]
    small = calls_of_check(tmp_path / name, before + repeated * 300 + after)
    assert calls_of_check(tmp_path / name, before + repeated * 1200 + after) <= 5 * small


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_two_megabytes_is_searched(tmp_path, name):
    """A quadratic search would take an hour."""
    before, repeated, after = REPEATED[name]
    (tmp_path / name).write_text(before + repeated * ((2 << 20) // len(repeated)) + after)
    report = check([str(tmp_path / name)])
    assert report.files == 1 and len(report.findings) <= 2


@pytest.mark.parametrize("name", ["train.py", "train.sh", "cells.ipynb"])
def test_a_file_over_the_limit_is_not_searched_and_reported_if_it_mentions_apex(tmp_path, capsys, name):
    before, after = ('{"cells": [{"cell_type": "code", "source": "', '"}]}') if name == "cells.ipynb" else ("", "")
    (tmp_path / name).write_text(before + "apex, " + "x, " * (1 << 19) + after)
    assert main(["check", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert f"{name}:1" in told and "it has more than 1 MiB; --max-size allows more" in told
    main(["check", str(tmp_path), "--max-size", "2"])
    assert "--max-size" not in capsys.readouterr().out


def test_a_file_over_the_limit_without_the_word_apex_is_no_error(tmp_path, capsys):
    (tmp_path / "train.py").write_text("amp = 1\n" + "x, " * (1 << 19))
    assert main(["check", str(tmp_path)]) == 0
    assert "it has more than 1 MiB; --max-size allows more" in capsys.readouterr().out


def test_images_of_a_notebook_do_not_count(tmp_path, capsys):
    image = '{"cell_type": "markdown", "source": "' + "x" * (2 << 20) + '"}'
    (tmp_path / "cells.ipynb").write_text('{"cells": [' + image + ', {"cell_type": "code", "source": "import apex"}]}')
    assert main(["check", str(tmp_path)]) == 0
    assert "Uses of Apex: 1 in 1 of 1 files" in capsys.readouterr().out
