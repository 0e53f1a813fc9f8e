"""Does diagnose=True warn before values overflow, and keep quiet in healthy trainings?

    python benchmarks/growth_warnings.py [--cases NAME …] [--levels O1 O2 O3] [--without-forecast-cases]

Each training of ``growth_cases.py`` runs at each level. Where a module's output or input overflows in the forward pass,
in pass ``EARLY`` or later, a warning has to come before, and to name what grows. Where nothing overflows there must be
none; of this there are more trainings in ``forecast_cases.py``. The exit code is 1 if fewer than 80 % are warned of, or
more than 1 % of the trainings without an overflow have a warning.
"""

import re
import statistics
import sys
import time
import warnings

import bench
import forecast_cases
import growth_cases
import torch

import ampcompat
from ampcompat.trace.skipped_steps.diagnosis import OverflowDiagnosis

#: Overflows before this pass come without a history.
EARLY = 12

WANTED, ALLOWED = 80, 1


class Watched(OverflowDiagnosis):
    """A diagnosis that notes in which pass a value of the forward pass was first inf or nan."""

    def __init__(self):
        super().__init__(prints=False)
        self.passes, self.overflow = 0, None

    def _record(self, backward):
        record = super()._record(backward)
        if self.overflow is None and any(value - value != 0 for _, value in record.outputs.read()):
            self.overflow = self.passes
        self.passes += 1
        return record


def main():
    """Print a row per growing training and the false alarms, and return the exit code."""
    stated = bench.options(__doc__, cases=[], levels=["O1", "O2", "O3"], without_forecast_cases=False)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begin = time.time()
    healthy = growth_cases.HEALTHY + ([] if stated.without_forecast_cases else forecast_cases.CASES)
    chosen = [case for case in growth_cases.GROWING + healthy if not stated.cases or case.name in stated.cases]
    leads, counts = [], {"overflows": 0, "warned": 0, "named": 0, "without": 0, "alarms": 0}
    bench.heading("training", "level", "overflow in pass", "warned in pass", "of")
    for case in chosen:
        for level in stated.levels:
            judge(case, level, counts, leads)
    print(
        "\nwarned before: {warned} of {overflows} overflows, and what grows is named in {named}. "
        "Warnings in {without} trainings without an overflow: {alarms}.".format(**counts)
    )
    if leads:
        print(f"passes from warning to overflow: {min(leads)} to {max(leads)}, median {statistics.median(leads):g}")
    print(f"{time.time() - begin:.0f} s. {bench.machine()}")
    is_right = counts["warned"] * 100 >= WANTED * counts["overflows"]
    return 0 if is_right and counts["alarms"] * 100 <= ALLOWED * counts["without"] else 1


def judge(case, level, counts, leads):
    """Run a training, count it, and print a row if it overflows late or has a warning."""
    watched = run(case, level)
    is_planted = case in growth_cases.GROWING
    step, text = (watched.warnings or [(None, "")])[0]
    named = (re.findall("of the (.*?) has grown", text) or [""])[0]
    if watched.overflow is None:
        counts["without"] += 1
        counts["alarms"] += step is not None
    elif is_planted and watched.overflow >= EARLY:
        is_before = step is not None and step < watched.overflow
        counts["overflows"] += 1
        counts["warned"] += is_before
        counts["named"] += is_before and any(name in named for name in case.modules)
        leads.extend([watched.overflow - step] if is_before else [])
    if is_planted or (watched.overflow is None and step is not None):
        bench.row(case.name, level, _shown(watched.overflow), _shown(step), named)


def _shown(number):
    return "-" if number is None else number


def run(case, level):
    """Train a case at a level; return the ``Watched``. A training that raises an error ends there."""
    torch.manual_seed(0)
    watched = Watched()
    try:
        with ampcompat.session(level, observers=[watched], verbosity=0):
            case.train()
    except (RuntimeError, ampcompat.errors.AmpError):
        pass  # some cases of forecasts are refused, or fail, at some levels
    return watched


if __name__ == "__main__":
    sys.exit(main())
