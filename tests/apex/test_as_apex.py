"""``import ampcompat.as_apex``: the alias in a process that runs already, as in notebooks."""

import subprocess
import sys

import pytest
from helpers import forked
from helpers.processes import ROOT, python

TRAINING = """
import torch
from apex import amp
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
with amp.scale_loss(model(torch.ones(3, 4)).float().mean(), optimizer) as scaled_loss:
    scaled_loss.backward()
optimizer.step()
print(amp.__name__, "ampcompat" in amp.__file__)
"""


def run(code, *folders):
    """Run code in a fresh process in which ampcompat and the folders can be imported."""
    script = f"import sys; sys.path[:0] = {[ROOT] + [str(folder) for folder in folders]!r}\n" + code
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def fake_apex(folder, *submodules):
    package = folder / "apex"
    for name in submodules:
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text("")
    (package / "__init__.py").write_text("marker = 1\n")
    return folder


def test_one_line_lets_apex_be_imported(tmp_path):
    (tmp_path / "script.py").write_text("import ampcompat.as_apex" + TRAINING)
    done = forked.run(forked.script, tmp_path / "script.py")
    assert (done.returncode, done.stdout) == (0, "apex.amp True\n"), done.stderr


def test_it_costs_no_torch_and_undo_gives_back_what_was_there(tmp_path):
    fake_apex(tmp_path, "optimizers")
    code = (
        "import apex; assert apex.marker == 1; path = list(sys.path)\n"
        "import ampcompat.as_apex as alias; alias.use()\n"
        "assert 'torch' not in sys.modules\n"
        "import apex; assert 'ampcompat' in apex.__file__\n"
        "alias.undo(); alias.undo(); assert sys.path == path\n"
        "import apex; assert apex.marker == 1\n"
        "alias.use(); import apex; assert 'ampcompat' in apex.__file__\n"
    )
    assert run(code, tmp_path) == (0, "", "")


def test_a_loaded_apex_with_amp_is_refused_in_one_sentence(tmp_path):
    fake_apex(tmp_path, "amp", "optimizers")
    code, _, error = run("import apex\nimport ampcompat.as_apex\n", tmp_path)
    assert code == 1 and "is loaded in this process, with its amp" in error and str(tmp_path) in error
    code, out, error = run("import ampcompat.as_apex; import apex; print('ampcompat' in apex.__file__)", tmp_path)
    assert (code, out) == (0, "True\n"), error


def test_a_real_notebook_runs_with_the_extension_and_without_after_unloading_it(tmp_path):
    pytest.importorskip("nbclient", reason="the extra `test` has nbclient")
    pytest.importorskip("ipykernel", reason="the extra `test` has ipykernel")
    nbformat = pytest.importorskip("nbformat", reason="nbclient brings nbformat")
    cells = [
        f"import sys; sys.path.insert(0, {ROOT!r})",
        "%load_ext ampcompat",
        TRAINING,
        "%unload_ext ampcompat\nimport importlib.util\nprint(importlib.util.find_spec('apex'))",
        "import ampcompat.as_apex\nampcompat.as_apex.use()\nimport apex\nprint(apex.__name__)",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    path = tmp_path / "train.ipynb"
    nbformat.write(book, str(path))
    script = (
        "import sys, nbclient, nbformat\n"
        "book = nbclient.NotebookClient(nbformat.read(sys.argv[1], 4), timeout=120).execute()\n"
        "print([''.join(out.get('text', '') for out in cell.outputs) for cell in book.cells])\n"
    )
    done = python("-c", script, str(path), cwd=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "'apex.amp True\\n', 'None\\n', 'apex\\n'" in done.stdout
