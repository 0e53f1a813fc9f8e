"""``migrate`` of large scripts: in time proportional to their size."""

import pytest
from helpers.counted_calls import calls

pytest.importorskip("libcst", reason="the extra `migrate` has LibCST")

from ampcompat.static_analysis.migrate import migrate, write_level  # noqa: E402 - needs LibCST

HEAD = "import torch\nfrom apex import amp\nmodel = torch.nn.Linear(1, 1)\n"
HEAD += "opt = torch.optim.SGD(model.parameters(), lr=1)\n"
INITIALIZE = "model, opt = amp.initialize(model, opt, opt_level='O1')\n"
BLOCK = "loss = model(x)\nwith amp.scale_loss(loss, opt) as s:\n    s.backward()\nopt.step()\n"
#: what is rewritten -> the function, and what comes before the repeated part, it, and what comes after.
REPEATED = {
    "blocks": (migrate, HEAD + INITIALIZE, BLOCK, ""),
    "functions": (
        migrate,
        HEAD + INITIALIZE,
        'def f(a):\n    """Text."""\n    return [each + 2 for each in a]\n',
        BLOCK,
    ),
    "backward passes": (
        lambda source: write_level(source, "O1"),
        HEAD.replace("from apex import amp\n", ""),
        "loss = model(x)\nloss.backward()\nopt.step()\n",
        "",
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_four_times_the_script_takes_at_most_five_times_the_calls(name):
    rewrite, before, repeated, after = REPEATED[name]
    small = calls(rewrite, before + repeated * 10 + after)
    assert calls(rewrite, before + repeated * 40 + after) <= 5 * small
