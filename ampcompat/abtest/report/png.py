"""Writes the charts of reports as one image."""

import os

from ...errors import AmpError
from . import charts, renderer


def save_figure(reports, path, scale=1.5):
    """Draw all charts as one image; needs the extra ``report``.

    Args:
        reports: a ``Report``, or several as ``[(name, Report), …]``, which are drawn in the same charts.
        path: its ending selects the format: png, svg or pdf.
        scale: pixels of a PNG per unit; an image is about 1,100 units wide.
    """
    reports = reports if isinstance(reports, list) else [("", reports)]
    kind = os.path.splitext(str(path))[1].lower().lstrip(".")
    if kind not in renderer.FORMATS:
        formats = ", ".join("." + name for name in renderer.FORMATS)
        raise AmpError("Cannot draw {}: its ending must be one of {}.".format(path, formats))
    drawn = renderer.image(charts.figure(reports), kind, scale)
    with open(path, "wb") as file:
        file.write(drawn)
