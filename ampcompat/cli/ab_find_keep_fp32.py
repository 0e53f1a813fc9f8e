"""``ab --find-keep-fp32 LEVEL``: which layers must stay float32 for a rejected level to be accepted?

A forecast ranks the layers; training decides which of them are needed.
"""

import itertools
from dataclasses import replace

from ..abtest.judging.verdict import ACCEPTED, judge
from ..abtest.report_data import Report
from ..abtest.running.subprocess_supervisor import SubprocessRun, run_one
from ..diagnostics.forecast.forecast_text import argument, ranking
from ..errors import AmpError
from .forecast_command import forecast_of


def find(report, level, make_forecast, run_candidate):
    """Search for the layers, and return the sentence to print. After Ctrl-C, this is what was found so far.

    Args:
        report: contains the baseline with its control, and the level.
        make_forecast: a function of no arguments: returns the forecast of the script, as ``forecast_json.make`` does.
        run_candidate: a function: names of layers -> the ``Run`` of the level with these in float32.
    """
    if judge(report)[level].kind == ACCEPTED:
        return f"{level} is accepted as it is: no layer needs float32."
    try:
        names = ranking(make_forecast(), level)
    except AmpError as error:
        return f"{level} cannot be searched: {error}"
    if not names:
        return f"{level} cannot be searched: no layer computes in half in it."
    tried, accepted = [], []

    def is_accepted(kept):
        if not kept:
            return False  # the level itself
        candidate = Report(baseline=report.baseline, runs={report.baseline: report.runs[report.baseline]})
        candidate.runs[level] = run_candidate(kept)
        tried.append(judge(candidate)[level])
        accepted.extend([kept] if tried[-1].kind == ACCEPTED else [])
        return tried[-1].kind == ACCEPTED

    try:
        found = search(names, is_accepted)
    except KeyboardInterrupt:
        print(_found_so_far(level, names, len(tried), min(accepted, key=len, default=None)))
        raise
    if found is None:
        sentence = "{} is not accepted even with all of its {} layers in float32: {}: {}."
        return sentence.format(level, len(names), tried[-1].kind, tried[-1].text)
    sentence = "{} is accepted with {} ({} of {} layers; {} runs)."
    return sentence.format(level, argument(found), len(found), len(names), len(tried))


def search(names, is_accepted):
    """Return the smallest set of names found with which a level is accepted; None if all of them are not enough.

    Bisection over the ranking finds the shortest accepted prefix, provided that longer ones are not worse; then each
    name that is not needed is left out.

    Args:
        names: layers, the one to keep in float32 first.
        is_accepted: a function: a list of names -> whether the level is accepted with these in float32. It trains.
    """
    names = list(names)
    if not is_accepted(names):
        return None
    low, high = 0, len(names)  # the first `high` are known to be accepted, the first `low` are not
    while low < high:
        middle = (low + high) // 2
        if is_accepted(names[:middle]):
            high = middle
        else:
            low = middle + 1
    kept = names[:high]
    for name in kept[:-1]:
        fewer = [each for each in kept if each != name]
        if is_accepted(fewer):
            kept = fewer
    return kept


def _found_so_far(level, names, runs, kept):
    told = "The search was interrupted after {} run{}: ".format(runs, "" if runs == 1 else "s")
    if kept is None:
        return told + f"no layers were found with which {level} is accepted."
    sentence = "{} is accepted with {} ({} of {} layers); fewer may be enough."
    return told + sentence.format(level, argument(kept), len(kept), len(names))


def print_search(report, options, planned, progress):
    """Search with each candidate in a child process, and print the layers that must stay float32.

    Args:
        options: those of ``ab``.
        planned: the ``PlannedRun`` of every run of the report.
    """
    level = options.find_keep_fp32
    base, numbers = next(each for each in planned if each.level == level), itertools.count(1)

    def make_forecast():
        common = {name: getattr(base, name) for name in ("launcher", "timeout", "since")}
        return forecast_of(options, base.command, progress, checkpoints=report.checkpoints(), **common)

    def run_candidate(names):
        candidate = dict(base.options, initialize={"keep_fp32": names}, memory=False, diagnose=False)
        name = f"{level}-candidate-{next(numbers)}"
        child = SubprocessRun(replace(base, options=candidate), name=name, checkpoints=report.checkpoints())
        return run_one(child, f"{level} with {len(names)} layers in float32", progress).run

    print()
    print(find(report, level, make_forecast, run_candidate))
