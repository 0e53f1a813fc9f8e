"""The kinds of rows of a report: opt levels and variants of one script, or several scripts."""

import os

#: The row of a script at its own level, which is the baseline if no levels are given.
UNCHANGED = "unchanged"


def are_scripts(report):
    """Return whether other scripts are compared with the baseline's.

    A row with the name of an opt level is never one, even if the script was edited while the series was running.
    """
    baseline = report.runs.get(report.baseline)
    if baseline is None or not baseline.identity.get("script"):
        return False
    others = [run.identity for row, run in report.runs.items() if run.identity.get("level") != row]
    return any(each.get("script") not in (None, baseline.identity["script"]) for each in others)


def script_name(command):
    """Return the display name of a script or module, from ``[script, …]`` or ``["-m", module, …]``."""
    return command[1] if command[0] == "-m" else os.path.basename(os.path.normpath(command[0]))


def title(report):
    """Return what was compared, for a heading."""
    if not are_scripts(report):
        return "Opt levels of {}".format(os.path.basename(str(report.environment.get("script") or "a training")))
    others = [row for row in report.runs if row != report.baseline]
    return "{} against {}".format(", ".join(others), report.baseline)
