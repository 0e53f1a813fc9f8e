"""Reports with one value altered or removed: each must be read and rendered, or refused in one sentence with the place.

    PYTHONPATH=tests python -m helpers.altered_reports 5000 [--draw-every 25]

prints how many were read and how many refused; with ``--draw-every`` some are drawn by vl-convert too.
"""

import argparse
import collections
import contextlib
import copy
import json
import random
import re

from ampcompat.abtest import Report, to_html, to_text
from ampcompat.abtest.report import charts
from ampcompat.abtest.report.markup import to_latex, to_markdown
from ampcompat.abtest.report_data import Equivalence, Speed
from ampcompat.errors import AmpError
from helpers.made_reports import HOSTILE, good_report, made_run, two_losses_report

ODD = [
    None,
    True,
    -1,
    0,
    1,
    2,
    0.5,
    -1.5,
    1e308,
    -1e308,
    2**31,
    2**62,
    10**400,
    "",
    "x",
    "nan",
    "inf",
    "\ud800",
    HOSTILE,
]
ODD += [[], [[]], [1], ["a"], [[1, 10**9]], [[1, -1]], [[None, 3]], {}, {"steps": [1]}, {"O0": {}}, {"": None}]

#: What a sentence about a damaged report looks like: it has the place.
REFUSED = re.compile(
    r"^(This report is damaged at \S.*: write it again|"
    r"This report has schema |This JSON is not)"
)


def whole_reports():
    """Return reports that have something in every field, as JSON trees."""
    good, several = good_report(40), two_losses_report()
    for run in good.runs.values():
        run.metrics = {"accuracy": [(10, 0.5), (30, 0.75)]}
        run.watched, run.measured, run.memory_notes = [0, 1, 2, 4, 5], [1, 2], ["optimizer: 4 bytes more"]
        run.identity = {"script": "0123", "options": {"backend": None}}
    good.runs["O3"] = made_run("O3", 0)
    good.runs["O3"].status, good.runs["O3"].error, good.runs["O3"].traceback = "failed", "ValueError: no", "Trace"
    good.environment.update(target="loss=0.3", tolerance=0.05, commit="0123abcd", machine="a CPU, 2 cores")
    good.runs["O1"].timings = [made_run("O1", 20), made_run("O1", 20)]
    good.runs["O1"].speed = Speed(1.2, (1.1, 1.3))
    good.runs["O1"].equivalence = Equivalence("not shown", 0.01, (-0.1, 0.12), 1, 9)
    return [json.loads(report.to_json()) for report in (good, several)]


def places(tree, path=()):
    """Yield the path of every value in a JSON tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield path + (key,)
        yield from places(value, path + (key,))


def altered(tree, generator):
    """Return a copy of a tree with one value altered or removed, and what was done."""
    tree = copy.deepcopy(tree)
    found = list(places(tree))
    # Long lists of numbers would be chosen nearly always: one place of each kind counts once.
    kinds = collections.defaultdict(list)
    for path in found:
        kinds[tuple("*" if isinstance(key, int) else key for key in path)].append(path)
    path = generator.choice(kinds[generator.choice(sorted(kinds))])
    owner = tree
    for key in path[:-1]:
        owner = owner[key]
    if generator.random() < 0.25:
        del owner[path[-1]]
        return tree, (path, "removed")
    owner[path[-1]] = generator.choice(ODD)
    return tree, (path, owner[path[-1]])


def outcome(tree, draws=False):
    """Return "read" or "refused"; anything else raises."""
    try:
        report = Report.from_json(json.dumps(tree))
    except AmpError as error:
        if not REFUSED.match(str(error)) or "\n" in str(error):
            raise AssertionError(f"refused, but not in one sentence with the place: {error}") from error
        return "refused"
    with refused_targets():
        to_text(report, details=True).encode("utf-8")
        (to_markdown(report) + to_latex(report)).encode("utf-8")
        json.dumps([chart.spec for chart in charts.charts(report)], allow_nan=False)
        if draws:
            to_html(report).encode("utf-8")
    assert repr(Report.from_json(report.to_json())) == repr(report)
    return "read"


@contextlib.contextmanager
def refused_targets():
    """Accept the errors about a target, and a tolerance, that is none."""
    try:
        yield
    except AmpError as error:
        if "is not NAME=NUMBER" not in str(error) and "is not a share between 0 and 1" not in str(error):
            raise


def count(number, draw_every=0, seed=0):
    """Return how many of so many altered reports were read and refused."""
    generator, reports, counts = random.Random(seed), whole_reports(), collections.Counter()
    for index in range(number):
        tree, change = altered(reports[index % len(reports)], generator)
        try:
            counts[outcome(tree, draw_every and index % draw_every == 0)] += 1
        except Exception as error:
            raise AssertionError(f"{change}: {type(error).__name__}: {error}") from error
    return counts


def main():
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("number", type=int)
    parser.add_argument("--draw-every", type=int, default=0)
    options = parser.parse_args()
    print(dict(count(options.number, options.draw_every)))


if __name__ == "__main__":
    main()
