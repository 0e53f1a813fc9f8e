"""Every level with accumulation, checkpointing and two processes, and with pairs of them, learns digits_cnn alike."""

import pytest
import saver_loops
import torch
from helpers import ranks

from ampcompat.support.torch_compat import features

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
if not features.is_version_within(oldest="1.11"):
    pytest.skip("this torch has reentrant checkpoints only, and the example needs the others", allow_module_level=True)

#: Of the loss at each step, against float32 without any of it.
TOLERANCE = {"O0": 1e-4, "O1": 1e-2, "O2": 1e-2, "O3": 3e-2, "O4": 6e-2, "O5": 6e-2}


@pytest.fixture(scope="module")
def losses():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    return ranks.run(saver_loops.all_combinations)


@pytest.mark.parametrize("combination", saver_loops.combinations(), ids=lambda each: "-".join(map(str, each)))
def test_every_combination_learns_alike(losses, combination):
    plain = losses[0][saver_loops.PLAIN]
    assert plain[-1] < 0.9 * plain[0]
    results = [rank[combination] for rank in losses if combination in rank]
    assert len(results) == (1 if combination[-1] == "alone" else 2)
    for found in results:
        assert len(found) == saver_loops.STEPS
        for mine, wanted in zip(found, plain):
            assert abs(mine - wanted) <= TOLERANCE[combination[0]] * plain[0]
