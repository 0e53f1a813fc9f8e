"""A/B runs: train at several opt levels and compare losses, loss scales, speed and memory.

Reports can be read and drawn without torch; only ``compare`` imports it.
"""

from .recording.metrics import log
from .report.html import to_frame, to_html
from .report.renderer import save_figure
from .report.text import to_text
from .report_data import Finding, Memory, Report, Run

__all__ = ["Finding", "Memory", "Report", "Run", "compare", "log", "save_figure", "to_html", "to_text"]


Report._repr_html_ = to_frame  # set here, so that the data do not depend on the code that shows them


def __getattr__(name):
    """Import ``compare``, and torch with it, when it is first used."""
    if name != "compare":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .running.in_process import compare

    return globals().setdefault("compare", compare)
