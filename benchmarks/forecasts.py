"""Are forecasts right? Each case of ``forecast_cases.py`` is forecast from a float32 run, and trained at each level.

    python benchmarks/forecasts.py [--cases NAME …] [--part chosen | held-out]

The truth is the verdict of ``ab``; cells that it does not judge do not count. Each row has, for O1 to O5, the truth and
the forecast: ``ok`` accepted and forecast so, ``FAIL`` rejected and forecast so, ``missed`` rejected though forecast to
work, ``false`` accepted though forecast to fail, ``-`` not judged; and whether the planted module is named and
whether the levels are accepted with the proposed ``keep_fp32``. The exit code is 1 if a share is under 90 %.
"""

import collections
import dataclasses
import sys
import time

import bench
import torch
from forecast_cases import CASES

from ampcompat.abtest import Report, compare
from ampcompat.abtest.judging.verdict import ACCEPTED, NOT_JUDGED, REJECTED, judge
from ampcompat.abtest.recording import forced_run
from ampcompat.abtest.recording.recorder import Recorder
from ampcompat.abtest.running import seeding
from ampcompat.diagnostics.forecast import forecast_observer

LEVELS = ("O1", "O2", "O3", "O4", "O5")

#: The share that every figure must reach, in percent.
WANTED = 90


def main():
    """Print a row per case and return the exit code."""
    stated = bench.options(__doc__, cases=[], part=None, choices={"part": ("chosen", "held-out")})
    torch.set_num_threads(1)
    cases = [case for case in CASES if not stated.cases or case.name in stated.cases]
    if stated.part:
        cases = [case for case in cases if case.held_out == (stated.part == "held-out")]
    counts = {False: collections.Counter(), True: collections.Counter()}
    start = time.time()
    bench.heading("case", *LEVELS, "named", "accepted with keep_fp32")
    for case in cases:
        bench.row(*cells_of(case, counts[case.held_out]))
    shares = [share for is_held_out in (False, True) for share in summary(counts[is_held_out], is_held_out)]
    print(f"\n{len(cases)} cases in {time.time() - start:.0f} s. {bench.machine()}")
    return 0 if min(shares) >= WANTED else 1


def cells_of(case, counts):
    """Return the cells of a case's row, and count them."""
    report = compare(case.train, levels=("O0",) + LEVELS, diagnose=False, memory=False)
    verdicts, forecast = judge(report), forecast_of(case)["levels"]
    cells, named, kept = [], [], []
    for level in LEVELS:
        truth, told = verdicts[level].kind, forecast[level]
        cells.append(cell(truth, told["prediction"]))
        counts[cells[-1]] += 1
        if cells[-1] == "FAIL" and case.modules:
            named.append(any((finding["module"] or "") in case.modules for finding in told["findings"]))
        if truth == REJECTED and told["prediction"] == "keep_fp32":
            kept.append(verdict_with(case, level, told["keep_fp32"], report))
    counts["kept not judged"] += kept.count(NOT_JUDGED)
    kept = [each == ACCEPTED for each in kept if each != NOT_JUDGED]
    for name, found in (("named", named), ("kept", kept)):
        counts[name] += sum(found)
        counts["all " + name] += len(found)
    told = [f"{sum(found)} of {len(found)}" if found else "" for found in (named, kept)]
    return [case.name] + cells + told


def cell(truth, prediction):
    """Return the word for a level's truth and forecast."""
    if truth == NOT_JUDGED:
        return "-"
    if truth == ACCEPTED:
        return "ok" if prediction == "works" else "false"
    return "missed" if prediction == "works" else "FAIL"


def forecast_of(case):
    """Return the forecast of a case, with the seeds of ``compare``."""
    found = []
    options = {"watch": forecast_observer.__name__, "losses_by_line": True, "initialize": {"loss_scale": 1.0}}
    record(case, lambda event: found.append(event.get("forecast")), options)
    told = next(each for each in found if each is not None)
    if isinstance(told, str):
        raise RuntimeError(f"no forecast of {case.name}: {told}")
    return told


def record(case, on_event, options):
    """Record a case at O0, as ``ampcompat forecast`` does."""
    recorder = Recorder(forecast_observer.STEPS, on_event)
    run_options = forced_run.RunOptions(verbosity=0, diagnose=False, memory=False, **options)
    with seeding.restored():
        seeding.seed_all(0, 0)
        with forced_run.recorded_at("O0", recorder, run_options):
            end = forced_run.run_to_end(recorder, case.train, ())
    if end["end"] == "failed":
        raise RuntimeError(end["traceback"])


def verdict_with(case, level, names, report):
    """Return the verdict of ``ab`` on a level with layers in float32."""
    kept = list(case.options.get("keep_fp32", ())) + names
    case = dataclasses.replace(case, options=dict(case.options, keep_fp32=kept))
    found = compare(case.train, levels=[level], baseline=level, control=False, diagnose=False, memory=False)
    runs = {report.baseline: report.runs[report.baseline], level: found.runs[level]}
    return judge(Report(baseline=report.baseline, runs=runs))[level].kind


def summary(counts, is_held_out):
    """Print the shares of one part of the cases, and return them in percent."""
    failing, named, kept = counts["FAIL"], counts["named"], counts["kept"]
    pairs = [
        ("precision of a forecast failure", failing, failing + counts["false"]),
        ("recall of a failure", failing, failing + counts["missed"]),
        ("the planted module is named", named, counts["all named"]),
        ("accepted with the proposed keep_fp32", kept, counts["all kept"]),
    ]
    print("\n{}:".format("Held out" if is_held_out else "The cases with which constants were chosen"))
    for told, found, total in pairs:
        if total:
            print(f"- {told}: {found} of {total}, {100 * found / total:.0f} %")
    print("- not judged by ab: {}, and {} with keep_fp32".format(counts["-"], counts["kept not judged"]))
    return [100 * found / total for _, found, total in pairs if total]


if __name__ == "__main__":
    sys.exit(main())
