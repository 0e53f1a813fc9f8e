"""``CheckResult``, the result of one check on one case, and its statuses."""

from typing import Any, Mapping, NamedTuple

OK, FAILED, NOT_RUN, MEASURED = "ok", "failed", "not run", "measured"


class CheckResult(NamedTuple):
    """One line of the self-test's table.

    ``advice`` says what to do and is printed if ``status`` is ``FAILED``. ``figures`` are numbers and lists for the
    JSON file. ``MEASURED`` is information: it never fails.
    """

    check: str
    case: str
    status: str
    found: str
    advice: str = ""
    figures: Mapping[str, Any] = {}

    @classmethod
    def of(cls, check, case, passed, found, advice, **figures):
        """Return a row that is ``OK`` or ``FAILED``."""
        return cls(check, case, OK if passed else FAILED, found, advice, figures)
