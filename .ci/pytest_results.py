"""Read what came of a run of pytest: from its report, or from what it printed before it was ended."""

import pathlib
import re
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent

#: What pytest -v prints with pytest-xdist when a test begins, and when it has ended (or a worker with it).
BEGUN = re.compile(r"(tests/\S+\.py::.*?) *")
DONE = re.compile(r"\[gw\d+\] \[ *\d+%\] ([A-Z]+) (tests/.*?) *")


def node_id(dotted, name):
    """Return what pytest calls a test, from the module, with the class if there is one, and the name in its report."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        path = "/".join(parts[:end]) + ".py"
        if (ROOT / path).exists():
            return "::".join([path] + parts[end:] + [name])
    return dotted + "::" + name


def counts(report):
    """Return what a JUnit report of pytest says: passed and skipped, and failures by name."""
    outcomes = {}  # a test that fails and then has an error is there twice
    for case in xml.etree.ElementTree.parse(str(report)).iter("testcase"):
        name = node_id(case.get("classname", ""), case.get("name"))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcomes[name] = "failed"
        elif skip is None:
            outcomes.setdefault(name, "passed")
        elif skip.get("type") == "pytest.xfail":
            outcomes[name] = "known"
        else:
            outcomes[name] = "skipped"

    def having(outcome):
        return [name for name, found in outcomes.items() if found == outcome]

    return {
        "passed": len(having("passed")),
        "skipped": len(having("skipped")),
        "failed": having("failed"),
        "known_failures": having("known"),
    }


def counts_of_output(lines):
    """Return the counts of a run that was ended, from the lines of pytest -v.

    They are those of ``counts``, and the tests that were running, "at", which count as failed.
    """
    running, found = {}, {"passed": set(), "failed": set(), "known_failures": set(), "skipped": set()}
    kinds = {"PASSED": "passed", "XPASS": "passed", "SKIPPED": "skipped", "XFAIL": "known_failures"}
    for line in lines:
        begun, done = BEGUN.fullmatch(line.rstrip()), DONE.fullmatch(line.rstrip())
        if begun:
            running[begun.group(1)] = True  # a dictionary keeps the order
        elif done:
            running.pop(done.group(2), None)
            found[kinds.get(done.group(1), "failed")].add(done.group(2))
    found["passed"] -= found["failed"]
    return {
        "passed": len(found["passed"]),
        "skipped": len(found["skipped"]),
        "failed": sorted(found["failed"] | set(running)),
        "known_failures": sorted(found["known_failures"]),
        "at": list(running),
    }
