"""When a series ends before all of its runs were done."""

import pytest

from ampcompat.abtest.planned_run import PlannedRun
from ampcompat.abtest.report_data import NEVER_INITIALIZED, Report, Run
from ampcompat.abtest.running.recorded_runs import ends_series


@pytest.mark.parametrize(
    "row, error, is_over",
    [("O0", "ValueError", True), ("O1", "ValueError", False), ("O1", NEVER_INITIALIZED, True)],
)
def test_a_run_that_leaves_nothing_to_compare_ends_the_series(row, error, is_over):
    assert ends_series(Report(), PlannedRun(row, []), Run(status="failed", error=error)) == is_over
