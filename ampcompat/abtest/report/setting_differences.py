"""Differences between reports: settings, versions and arguments of the runs."""

from ..row_names import noun

#: Values that differ in every series, or follow from other values.
OWN = ("target", "tolerance")


def settings_of(report):
    """Return ``{name: value as text}`` of the settings that determine the runs of a report."""
    baseline = report.runs.get(report.baseline)
    identity = dict(baseline.identity) if baseline is not None else {}
    found = {name: value for name, value in report.environment.items() if name not in OWN}
    options, script = identity.pop("options", None), identity.pop("script", None)
    for values in (identity, options if isinstance(options, dict) else {}):
        found.update({name: value for name, value in values.items() if name not in found})
    found["baseline"], found[noun(report) + "s"] = report.baseline, ", ".join(report.runs)
    found["contents of the script"] = None if script is None else str(script)[:8]
    found["seeds of the baseline"] = 1 + len(baseline.repeats) if baseline is not None else None
    return {str(name): _text(value) for name, value in found.items() if value is not None}


def _text(value):
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return str(value)


def differing(reports):
    """Return ``[(name, [value in each report, or "-"]), …]`` of values that are not equal in all of ``[Report, …]``."""
    found = [settings_of(report) for report in reports]
    names = list(dict.fromkeys(name for each in found for name in each))
    rows = [(name, [each.get(name, "-") for each in found]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]
