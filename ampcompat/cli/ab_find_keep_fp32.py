"""``ab --find-keep-fp32 LEVEL``: which layers must stay float32 for a rejected level to be accepted?"""

import itertools
from dataclasses import replace

from ..abtest.judging import keep_fp32_search
from ..abtest.judging.verdict import ACCEPTED, judge
from ..abtest.report_data import Report
from ..abtest.running.subprocess_supervisor import SubprocessRun, run_one


def find(report, level, run_candidate):
    """Search for the layers, and return the sentence to print. After Ctrl-C, this is what was found so far.

    Args:
        report: contains the baseline with its control, and the level with the errors of its layers.
        run_candidate: a function: names of layers -> the ``Run`` of the level with these in float32.
    """
    if judge(report)[level].kind == ACCEPTED:
        return f"{level} is accepted as it is: no layer needs float32."
    names = keep_fp32_search.ranking(report.runs[level])
    if not names:
        return f"{level} cannot be searched: no layer was compared in it (at least two steps are needed)."
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
        found = keep_fp32_search.search(names, is_accepted)
    except KeyboardInterrupt:
        print(_found_so_far(level, names, len(tried), min(accepted, key=len, default=None)))
        raise
    if found is None:
        sentence = "{} is not accepted even with all of its {} layers in float32: {}: {}."
        return sentence.format(level, len(names), tried[-1].kind, tried[-1].text)
    sentence = "{} is accepted with {} ({} of {} layers; {} runs)."
    return sentence.format(level, keep_fp32_search.argument(found), len(found), len(names), len(tried))


def _found_so_far(level, names, runs, kept):
    told = "The search was interrupted after {} run{}: ".format(runs, "" if runs == 1 else "s")
    if kept is None:
        return told + f"no layers were found with which {level} is accepted."
    sentence = "{} is accepted with {} ({} of {} layers); fewer may be enough."
    return told + sentence.format(level, keep_fp32_search.argument(kept), len(kept), len(names))


def print_search(report, options, planned, progress):
    """Search with each candidate in a child process, and print the layers that must stay float32.

    Args:
        options: those of ``ab``.
        planned: the ``PlannedRun`` of every run of the report.
    """
    level = options.find_keep_fp32
    base, numbers = next(each for each in planned if each.level == level), itertools.count(1)

    def run_candidate(names):
        candidate = dict(base.options, initialize={"keep_fp32": names}, layers=False, memory=False, diagnose=False)
        name = f"{level}-candidate-{next(numbers)}"
        child = SubprocessRun(replace(base, options=candidate), name=name, checkpoints=report.checkpoints())
        return run_one(child, f"{level} with {len(names)} layers in float32", progress).run

    print()
    print(find(report, level, run_candidate))
