"""Hand-made reports of A/B runs: no training, the same numbers every time."""

import math
import random

from ampcompat.abtest.report_data import Finding, Memory, Report, Run

MIB = 1024 * 1024
HOSTILE = "<script>alert('x')</script>\"&$\\frac{1}$ __évil__ \u2603\n]]>-->"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nRuntimeError: {}'


def made_run(level, steps=200, seed=0, start=2.3, drift=0.0, skipped=(), seconds=0.012):
    """Return a run whose loss falls from ``start``, with an error of about ``drift`` and ``skipped`` skipped steps."""
    noise, own = random.Random(seed), random.Random(level)
    run = Run(backend="native" if level in ("O1", "O4") else None, samples=[32] * steps, skipped=list(skipped))
    scale = 65536.0 if level in ("O1", "O2") else 1.0
    for step in range(steps):
        loss = start * math.exp(-3.0 * step / steps) + 0.1 + 0.08 * noise.random() + drift * own.gauss(0, 1)
        run.loss.append((step, 0, loss))
        run.scale.append((step, 0, scale))
        scale = scale / 2 if step in run.skipped else scale
        run.step_seconds.append(round(seconds * own.lognormvariate(0, 0.15) * (8 if step < 2 else 1), 6))
    run.memory = made_memory(level)
    run.verdict = "Within the baseline's noise."
    return run


def made_memory(level):
    half = level in ("O2", "O3", "O5")
    masters = 44 * MIB if level in ("O2", "O5") else 0
    parts = dict(parameters=22 if half else 44, gradients=22 if half else 44, optimizer=88)
    memory = Memory(masters=masters, **{kind: size * MIB for kind, size in parts.items()})
    memory.activations = (70 if level == "O0" else 40) * MIB
    memory.buffers = 6 * MIB
    memory.peak_total = (sum(parts.values()) + 6 + (70 if level == "O0" else 40)) * MIB + masters
    return memory


def good_report(steps=200):
    """Return a baseline with two further seeds, two levels that do well and one that stays behind."""
    report = Report(environment=made_environment(), baseline="O0")
    report.runs["O0"] = made_run("O0", steps)
    report.runs["O0"].verdict = "The baseline."
    report.runs["O0"].repeats = [made_run("O0", steps, seed=1), made_run("O0", steps, seed=2)]
    report.runs["O1"] = made_run("O1", steps, drift=0.004, skipped=(1, 2), seconds=0.007)
    report.runs["O2"] = made_run("O2", steps, drift=0.01, skipped=(0, 1, steps // 2), seconds=0.006)
    report.runs["O2"].findings = [Finding(steps // 2, "The gradient of layer3.weight was inf first; lower init_scale.")]
    report.runs["O3"] = made_run("O3", steps, start=3.0, drift=0.05, seconds=0.0055)
    report.runs["O3"].verdict = "Rejected: its loss ends 0.71 above the baseline's, beyond the noise of 0.02."
    return report


def broken_report(steps=120):
    """Return a level whose loss becomes nan, one that diverges, one that was interrupted and one that never started."""
    report = Report(environment=made_environment(), baseline="O0", runs={"O0": made_run("O0", steps)})
    nan = made_run("O1", steps, skipped=range(steps // 2, steps))
    nan.loss = [(step, 0, math.nan if step >= steps // 2 else value) for step, _, value in nan.loss]
    nan.findings = [Finding(step, "The output of body.4 was nan in forward.") for step in range(steps // 2, steps)]
    explodes = made_run("O2", steps)
    explodes.loss = [(step, 0, value * 1e30 ** max(0.0, step / steps - 0.5)) for step, _, value in explodes.loss]
    explodes.loss[-1] = (steps - 1, 0, math.inf)
    stopped = made_run("O4", steps // 3)
    stopped.status = "interrupted"
    failed = Run(status="failed", error="RuntimeError: out of memory", traceback=TRACEBACK.format("out of memory"))
    report.runs.update(O1=nan, O2=explodes, O3=failed, O4=stopped)
    return report


def hostile_report():
    """Return a report in which every text is an attack on markup."""
    run = Run(status="failed", error=HOSTILE, traceback=HOSTILE * 3, backend=HOSTILE, verdict=HOSTILE)
    run.findings = [Finding(0, HOSTILE)]
    environment = {HOSTILE: HOSTILE, "script": HOSTILE, "device": HOSTILE}
    other = made_run("O1", 10)
    other.verdict, other.metrics = HOSTILE, {HOSTILE: [(0, 1.0), (9, 2.0)]}
    return Report(environment=environment, baseline=HOSTILE, runs={HOSTILE: run, "_hidden": other})


def long_report(steps=20000):
    """Return two levels of very many steps with one spike."""
    report = Report(environment=made_environment(), runs={"O0": made_run("O0", steps), "O1": made_run("O1", steps)})
    report.runs["O1"].loss[steps // 3] = (steps // 3, 0, 40.0)
    return report


def two_losses_report():
    """Return a run with two losses with separate scales, as for GANs."""
    report = Report(environment=made_environment(), runs={"O0": made_run("O0", 80), "O1": made_run("O1", 80)})
    for run in report.runs.values():
        run.loss += [(step, 1, 5.0 - value) for step, _, value in run.loss]
        run.scale += [(step, 1, value / 4) for step, _, value in run.scale]
    return report


def made_environment():
    return {
        "ampcompat": "0.1.0",
        "torch": "2.13.0+cpu",
        "python": "3.11.9",
        "device": "cpu",
        "platform": "Linux-6.1-x86_64",
        "script": "examples/digits_cnn.py",
        "seed": 0,
    }


MADE = {
    "good": good_report,
    "broken": broken_report,
    "hostile": hostile_report,
    "long": long_report,
    "two losses": two_losses_report,
    "one level": lambda: Report(runs={"O1": made_run("O1", 30)}, baseline="O0"),
    "one step": lambda: Report(runs={"O0": made_run("O0", 1), "O1": made_run("O1", 1)}),
    "nothing measured": lambda: Report(runs={"O0": Run(), "O1": Run(status="failed", error="boom")}),
    "no runs": Report,
}
