"""Does diagnose=True warn before values overflow, and keep quiet in healthy trainings?

    python benchmarks/growth_warnings.py [--cases NAME …] [--levels O1,O2,O3] [--without-forecast-cases]

Each training of ``growth_cases.py`` runs at each level. Where a module's output or input overflows in the forward pass,
in pass ``EARLY`` or later, a warning has to come before, and to name what grows. Where nothing overflows there must be
none; of this there are more trainings in ``forecast_cases.py``. The exit code is 1 if fewer than 80 % are warned of, or
more than 1 % of the trainings without an overflow have a warning.
"""

import argparse
import re
import statistics
import sys
import time
import warnings

import ab_machine
import forecast_cases
import growth_cases
import torch

import ampcompat
from ampcompat.tools.diagnostics.diagnosis import OverflowDiagnosis

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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--levels", default="O1,O2,O3", help="default: O1,O2,O3")
    parser.add_argument("--without-forecast-cases", action="store_true", help="only growth_cases.py")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begin = time.time()
    levels = options.levels.split(",")
    healthy = growth_cases.HEALTHY + ([] if options.without_forecast_cases else forecast_cases.CASES)
    chosen = lambda kinds: [kind for kind in kinds if not options.cases or kind.__name__ in options.cases]  # noqa: E731
    leads, counts = [], {"overflows": 0, "warned": 0, "named": 0, "without": 0, "alarms": 0}
    print("| training | level | overflow in pass | warned in pass | of |\n|---|---|---|---|---|")
    for kind in chosen(growth_cases.GROWING) + chosen(healthy):
        for level in levels:
            judge(kind, level, counts, leads)
    print(
        "\nwarned before: {warned} of {overflows} overflows, and what grows is named in {named}. "
        "Warnings in {without} trainings without an overflow: {alarms}.".format(**counts)
    )
    if leads:
        print(f"passes from warning to overflow: {min(leads)} to {max(leads)}, median {statistics.median(leads):g}")
    print(f"{time.time() - begin:.0f} s. {ab_machine.describe()}")
    is_right = counts["warned"] * 100 >= WANTED * counts["overflows"]
    return 0 if is_right and counts["alarms"] * 100 <= ALLOWED * counts["without"] else 1


def judge(kind, level, counts, leads):
    """Run a training, count it, and print a row if it overflows late or has a warning."""
    watched = run(kind, level)
    is_planted = kind in growth_cases.GROWING
    step, text = (watched.warnings or [(None, "")])[0]
    named = (re.findall("of the (.*?) has grown", text) or [""])[0]
    if watched.overflow is None:
        counts["without"] += 1
        counts["alarms"] += step is not None
    elif is_planted and watched.overflow >= EARLY:
        is_before = step is not None and step < watched.overflow
        counts["overflows"] += 1
        counts["warned"] += is_before
        counts["named"] += is_before and any(name in named for name in kind.modules)
        leads.extend([watched.overflow - step] if is_before else [])
    if is_planted or (watched.overflow is None and step is not None):
        print(f"| {kind.__name__} | {level} | {_shown(watched.overflow)} | {_shown(step)} | {named} |", flush=True)


def _shown(number):
    return "-" if number is None else number


def run(kind, level):
    """Train a case at a level; return the ``Watched``. A training that raises an error ends there."""
    torch.manual_seed(0)
    watched = Watched()
    try:
        with ampcompat.session(level, observers=[watched], verbosity=0):
            kind().train()
    except (RuntimeError, ampcompat.errors.AmpError):
        pass  # some cases of forecasts are refused, or fail, at some levels
    return watched


if __name__ == "__main__":
    sys.exit(main())
