"""The results of ``check``, and whether the code base runs unchanged."""

from ..rules import ERROR, NOTE, WARNING

VERSION = 2


class CheckReport:
    """The results for a code base.

    Attributes:
        files: how many files were read.
        uses, levels, findings, broken: lists of ``Use``, ``RequestedLevel``, ``Problem`` and ``Broken``.
        scripts: the ``Script`` records of files that are started.
        forced: the ``ForcedScript`` records of scripts that train, if nothing uses ``amp``.
    """

    def __init__(self, files):
        self.files = files
        self.uses, self.levels, self.findings, self.broken = [], [], [], []
        self.scripts, self.forced = [], []

    def finish(self):
        """Sort the results by place, and remove duplicates."""
        self.uses, self.levels = _in_order(self.uses), _in_order(self.levels)
        self.findings, self.broken = _in_order(self.findings), _in_order(self.broken)

    def of(self, severity):
        """Return the findings of a severity."""
        return [each for each in self.findings if each.severity == severity]

    @property
    def uses_apex(self):
        """Whether any name of Apex is used, or a file that mentions it cannot be parsed."""
        return bool(self.uses or any(each.mentions_apex for each in self.broken))

    @property
    def exit_code(self):
        """0 if the code base runs unchanged and nothing but notes was found, otherwise 1."""
        return 1 if self.of(ERROR) or self.of(WARNING) else 0

    @property
    def verdict(self):
        """One sentence: does it run unchanged?"""
        if not self.files:
            return "No file to check: there is no Python file, notebook or shell script."
        errors, warnings = len(self.of(ERROR)), len(self.of(WARNING))
        looked_at = "; {} to look at".format(_count(warnings, "place")) if warnings else ""
        if not self.uses_apex:
            scripts = f" Scripts that train without it: {len(self.forced)}." if self.forced else ""
            return f"Nothing of Apex is used here{looked_at}." + scripts
        if errors:
            return "Does not run unchanged: {} to correct.".format(_count(errors, "place"))
        return f"Runs unchanged{looked_at}."

    def as_dict(self):
        """Return the report as a dict for JSON."""
        return {
            "version": VERSION,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "files": self.files,
            "scripts": [each._asdict() for each in self.scripts],
            "forced": [each._asdict() for each in self.forced],
            "uses": [_flat(each) for each in self.uses],
            "levels": [_flat(each) for each in self.levels],
            "findings": [_flat(each) for each in self.findings],
            "broken": [_flat(each) for each in self.broken],
        }


def _in_order(rows):
    return sorted(set(rows), key=lambda row: (row.place.order, str(row)))


def _flat(row):
    """Return a record as a dict, with the fields of its place in addition to its own."""
    fields = dict(row._asdict())
    return dict(fields.pop("place")._asdict(), **fields)


def _count(number, noun):
    return "{} {}{}".format(number, noun, "" if number == 1 else "s")


#: From the worst.
SEVERITIES = (ERROR, WARNING, NOTE)
