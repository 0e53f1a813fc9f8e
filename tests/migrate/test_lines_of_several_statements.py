"""``migrate`` on statements that share a line: what changes is split, the rest stays."""

import ast
import sys

import pytest

pytest.importorskip("libcst", reason="the extra `migrate` has LibCST")

from ampcompat.static_analysis.migrate import migrate  # noqa: E402

HEAD = """import torch
from apex import amp
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
{}
loss = model(1)
with amp.scale_loss(loss, optimizer) as scaled:
    scaled.backward()
"""


def migrated(before, after):
    """Return the new source of a script, given what comes before its forward pass and after its backward pass."""
    result = migrate(HEAD.format(before) + after)
    ast.parse(result.source)
    assert result.left == []
    return result.source


@pytest.mark.skipif(sys.version_info < (3, 10), reason="match")
def test_steps_on_the_line_of_a_case_are_rewritten():
    new = migrated("", "match 1:\n    case 0: optimizer.step()\n    case _: optimizer.step(); done()\n")
    assert "    case 0:\n        scaler.step(optimizer)\n        scaler.update()\n" in new
    assert "    case _:\n        scaler.step(optimizer)\n        scaler.update()\n        done()\n" in new


@pytest.mark.parametrize("head", ["optimizer.zero_grad(); \\\n", "if done: \\\n    ", "name = '#1'; \\\n"])
def test_a_step_after_a_backslash_is_rewritten(head):
    new = migrated("", head + "    optimizer.step()\n")
    assert "scaler.step(optimizer)\n" in new and "scaler.update()\n" in new


def test_a_backward_pass_after_a_backslash_is_rewritten():
    head = "with amp.scale_loss(loss,\n    optimizer) as scaled: \\\n"
    assert migrated("", head + "    scaled.backward()\n").count("scaler.scale(loss).backward()") == 2


@pytest.mark.parametrize(
    "others",
    [
        'usage = """\nif ready:\n    start()\n"""\n',
        "if ready:\n    start()\n",
        "if ready:\n    start()\n  \n    go()\n",
    ],
)
def test_statements_and_strings_that_are_on_lines_of_their_own_stay_so(others):
    assert others in migrated(others + "if ready: start()\n", "optimizer.step()\n")
