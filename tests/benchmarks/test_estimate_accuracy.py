"""The benchmarks of predictions: every network has a row, and predictions are what is measured or known."""

import pytest
from helpers import benchmark_files, half_kernels

from ampcompat.support.torch_compat import fake_tensors, features

if half_kernels.stand_in() or not features.is_version_within(oldest=fake_tensors.OLDEST):
    pytest.skip("fake tensors go through a step since torch " + fake_tensors.OLDEST, allow_module_level=True)

#: Each network once, at levels that together are all of them; the benchmark runs every pair.
PAIRS = [("mlp", "O2"), ("cnn", "O5"), ("resnet", "O1"), ("tied", "O4"), ("attention", "O3"), ("checkpointed", "O0")]


def test_predictions_are_within_five_percent_of_what_is_measured():
    accuracy = benchmark_files.load("estimate_accuracy")
    assert len(accuracy.NETWORKS) == 10
    for name, level in PAIRS:
        assert accuracy.predicted(name, level) == pytest.approx(accuracy.measured(name, level), rel=0.05), name


def test_a_row_has_the_ratio_and_the_last_line_the_worst(capsys):
    benchmark_files.load("estimate_accuracy").main(["--networks", "mlp", "--levels", "O0"])
    lines = capsys.readouterr().out.split("\n")
    assert lines[3].startswith("| mlp | O0 |") and lines[3].split("|")[5].strip() == "1.0000"
    assert lines[4] == "worst: off by 0.00%"


def test_activations_of_gpt_2_grow_with_its_layers_as_the_paper_counts_them():
    """ZeRO, section 3.2: 12 x width x batch x length x layers half values; checkpoints leave one of the 12."""
    gpt2 = benchmark_files.load("estimate_gpt2")
    values = 1600 * 32 * 1024 * 2
    for options, per_layer in (({"between": gpt2.F.relu}, 12), ({"checkpointed": True}, 1)):
        small, large = (gpt2.activations(gpt2.blocks_alone, layers=layers, **options) for layers in (2, 3))
        assert large - small == pytest.approx(per_layer * values, rel=0.02)
        if not options.get("checkpointed"):
            assert 60e9 < small + 46 * (large - small) < 61e9
