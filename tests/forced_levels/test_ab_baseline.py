"""``ab`` on scripts without Apex: the baseline is the script unchanged, and O0 beside it is bit-equal."""

import math
import random

import pytest
from helpers import forked

from ampcompat.abtest import Report
from ampcompat.abtest.judging import advice, against_unchanged_script
from ampcompat.abtest.judging.summary import summarize
from ampcompat.abtest.report_data import Memory, Run
from ampcompat.cli import ab_variants
from ampcompat.launch.forced_levels.forced_level import is_supported
from ampcompat.static_analysis.reading.imports import uses_amp

PLAIN = """
import torch
model = torch.nn.Linear(8, 1).to(torch.WEIGHTS)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    inputs = torch.randn(32, 8).to(torch.WEIGHTS)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=CASTS):
        loss = (model(inputs).float() - inputs.float().sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1")
@pytest.mark.parametrize(
    "casts, weights, told",
    [
        (False, "float32", "O0 has the same losses as the unchanged script, bit for bit"),
        (True, "float32", "the script casts by itself (torch.autocast in {}:7), and O0 computes in float32"),
        (False, "bfloat16", "the script's weights are bfloat16, without float32 masters, and O0 computes in float32"),
    ],
)
def test_the_report_says_whether_o0_is_the_script_unchanged(tmp_path, casts, weights, told):
    script, file = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(PLAIN.replace("CASTS", str(casts)).replace("WEIGHTS", weights))
    options = ["--no-control", "--timing-steps", "0", "--no-memory", "--no-diagnose", "--json", str(file)]
    done = forked.run(forked.ab, "--levels", "O0", *options, script)
    assert done.returncode == 0, done.stderr
    report = Report.load(file)
    assert (report.baseline, list(report.runs)) == ("unchanged", ["unchanged", "O0"])
    assert against_unchanged_script.is_equal(report) is not (casts or weights == "bfloat16")
    assert report.runs["O0"].inputs == report.runs["unchanged"].inputs and len(set(report.runs["O0"].inputs)) == 6
    assert told.format(script) in report.advice


def made(losses, o0=None, **fields):
    runs = {"unchanged": losses, "O0": losses if o0 is None else o0}
    made = {name: Run(loss=[(i, 0, each) for i, each in enumerate(row)]) for name, row in runs.items()}
    for run in made.values():
        run.step_seconds = [0.1] * len(run.loss)
    made["O0"].memory = Memory(peak_total=4096)
    return Report(baseline="unchanged", runs=made, **fields)


def test_the_last_bit_of_a_loss_counts_and_a_run_that_is_shorter_differs():
    assert "bit for bit, in all of 2 steps" in against_unchanged_script.tell(made([2.0, math.nan]))
    assert "from step 1 on (1.0000000000000002 against 1.0)" in against_unchanged_script.tell(
        made([2.0, 1.0], [2.0, 1.0 + 2.0**-52])
    )
    assert "is not deterministic" in against_unchanged_script.tell(made([2.0, 1.0], [2.0]))
    assert against_unchanged_script.tell(Report(runs={"O0": Run()})) is None


def falling(end, seed=0):
    noise = random.Random(seed)
    return [end + (3.0 - end) * math.exp(-step / 20) + 0.01 * noise.random() for step in range(100)]


@pytest.mark.parametrize(
    "end, casts, told",
    [
        (
            1.3,
            {"half_weights": "bfloat16"},
            "rejected: loss ends 29 % over O0's. Train at O5, which keeps float32 masters: "
            "ampcompat run --opt-level O5 train.py --lr 1",
        ),
        (1.001, {"half_weights": "bfloat16"}, "the unchanged script is accepted: loss ends 0.097 % over O0's."),
        (1.3, {"casts_itself": "torch.autocast in a.py:7"}, "Train at O0, float32: ampcompat run --opt-level O0"),
    ],
)
def test_a_script_that_computes_in_half_is_judged_against_o0_too(end, casts, told):
    report = made(falling(end), falling(1.0), environment=dict(casts, script="train.py --lr 1"))
    report.runs["O5"] = made(falling(1.001)).runs["O0"]
    report.runs["unchanged"].repeats = [made(falling(end, 1)).runs["O0"]]
    assert told in against_unchanged_script.tell(report) and "not deterministic" not in against_unchanged_script.tell(
        report
    )
    assert ("Train at" in against_unchanged_script.tell(report)) is (end > 1.1)


def rising(end, seed=0):
    return [6.0 - loss for loss in falling(6.0 - end, seed)]


@pytest.mark.parametrize(
    "losses, o0, o5, repeat, told",
    [
        (falling(1.03), falling(1.0), falling(1.01), falling(1.05, 1), "2.8 % lower at O0, 1.9 % lower at O5; seeds"),
        (
            falling(1.03),
            falling(1.0),
            falling(1.01),
            falling(1.4, 1),
            "lower at O5; seeds differ by 25 %, which is more.",
        ),
        (falling(1.03), falling(1.0), falling(1.2), None, "16 % higher at O5; without a control, it is not"),
        (
            rising(3.6),
            rising(3.5),
            rising(4.0),
            rising(3.6, 1),
            "2.8 % lower at O0, 11 % higher at O5; seeds differ by",
        ),
        (falling(1.03)[:15], falling(1.0)[:15], falling(1.0)[:15], None, "were not compared: 15 updates are too few"),
    ],
)
def test_where_it_is_not_judged_the_report_says_how_much_lower_or_higher_the_levels_end(losses, o0, o5, repeat, told):
    report = made(losses, o0, environment={"half_weights": "bfloat16"})
    report.runs["O5"] = made(o5).runs["O0"]
    report.runs["unchanged"].repeats = [made(repeat).runs["O0"]] if repeat else []
    assert told in against_unchanged_script.tell(report) and "Judged against O0" not in against_unchanged_script.tell(
        report
    )


@pytest.mark.parametrize("environment", [{}, {"half_weights": "bfloat16"}])
def test_a_baseline_whose_loss_rises_is_not_recommended_where_no_level_trains_alike(environment):
    report = made(rising(5.6), rising(3.2), environment=environment)
    report.runs["unchanged"].repeats = [made(rising(5.6, 1)).runs["O0"]]
    advice.advise(report)
    assert report.runs["O0"].verdict.startswith("rejected") and "Take" not in report.advice
    assert report.advice.startswith("No advice: the loss of the baseline unchanged rises, and no level trains alike.")


@pytest.mark.parametrize("seconds, taken", [(0.05, "Take O0"), (0.5, "Accepted: O0.\nunchanged has shorter steps")])
def test_a_half_script_that_is_rejected_against_o0_is_not_recommended_for_its_speed(seconds, taken):
    report = made(falling(1.3), falling(1.0), environment={"half_weights": "bfloat16"})
    report.runs["O0"].step_seconds = [seconds] * 100
    report.runs["unchanged"].repeats = [made(falling(1.3, 1)).runs["O0"]]
    advice.advise(report)
    assert report.advice.startswith(taken) and "the unchanged script is rejected" in report.advice


def test_the_baseline_has_the_memory_of_an_equal_o0_and_none_else():
    assert summarize(made([2.0, 1.0]))["unchanged"].peak == 4096
    assert summarize(made([2.0, 1.0], [2.0, 1.5]))["unchanged"].peak is None


def test_levels_of_a_script_without_amp_are_compared_with_the_script_unchanged():
    rows, baseline = ab_variants.choose_rows(["O1"], [], None, uses_amp=False)
    assert (list(rows), baseline) == (["unchanged", "O1"], "unchanged")
    assert ab_variants.choose_rows(["O1"], [], "none") == (rows, baseline)
    assert ab_variants.choose_rows(["O1"], [], "O0", uses_amp=False)[1] == "O0"


@pytest.mark.parametrize(
    "source, beside, used",
    [
        ("import torch\nfrom torch.cuda import amp\n", {}, False),
        ("from apex import amp\n", {}, True),
        ("from ampcompat import amp\n", {}, True),
        ("import apex\napex.amp.initialize()\n", {}, True),
        ("from apex.normalization import FusedLayerNorm\n", {}, False),
        ("from engine.loop import fit\n", {"engine/loop.py": "from apex import amp\n"}, True),
        (
            "import engine\n",
            {"engine/__init__.py": "from . import loop\n", "engine/loop.py": "import ampcompat\n"},
            True,
        ),
        ("import engine\n", {"engine/__init__.py": "", "other.py": "from apex import amp\n"}, False),
        ("def\n", {}, True),
    ],
)
def test_amp_is_found_in_the_script_and_in_what_it_imports_of_its_own(tmp_path, source, beside, used):
    for name, text in dict(beside, **{"train.py": source}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert uses_amp(tmp_path / "train.py") is used
