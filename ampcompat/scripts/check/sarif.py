"""A report in SARIF 2.1.0, which code review tools show next to the lines."""

import os

from ... import __version__
from ..model.rule_texts import RULES


def to_sarif(report):
    """Return the findings as a SARIF log, a dict for JSON. In a notebook, the line is that in the cell."""
    rules = [
        {
            "id": name,
            "shortDescription": {"text": row.title},
            "help": {"text": row.remedy},
            "defaultConfiguration": {"level": row.severity},
        }
        for name, row in RULES.items()
    ]
    driver = {"name": "ampcompat", "version": __version__, "rules": rules}
    results = [_result(each) for each in report.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _result(finding):
    place = finding.place
    location = {
        "physicalLocation": {
            "artifactLocation": {"uri": place.path.replace(os.sep, "/")},
            "region": {"startLine": place.line},
        }
    }
    if place.cell is not None:
        location["logicalLocations"] = [{"name": f"cell {place.cell}"}]
    return {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": finding.message},
        "locations": [location],
    }
