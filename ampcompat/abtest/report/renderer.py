"""Draws Vega-Lite specifications as images, and returns the JavaScript for interactive ones, with vl-convert.

The same specification is used for the chart of the page and that of the image. This only needs vl-convert, which has no
dependencies and one wheel for Python 3.7 to 3.13; Altair, which would write the same specifications, differs.
"""

import importlib.util
import os

from ...errors import AmpError
from ...support import files
from ...support.terminal import printable
from . import charts, text

NOT_INSTALLED = "Pages and images need vl-convert-python and jinja2: pip install 'vl-convert-python>=1.9' jinja2."

#: The version of Vega-Lite that specifications are written for.
VEGA_LITE = "6.1"

FORMATS = ("png", "svg", "pdf")


def is_installed():
    """Return whether pages and images can be created."""
    return all(importlib.util.find_spec(name) is not None for name in ("vl_convert", "jinja2"))


def library(name):
    """Return a package of the extra ``report``; without it an ``AmpError`` says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise AmpError(NOT_INSTALLED) from None


def javascript():
    """Return JavaScript that defines ``vegaEmbed`` and does not load anything."""
    # Within a script element "</script" would end it; it occurs in strings at most.
    return library("vl_convert").javascript_bundle(vl_version=VEGA_LITE).replace("</script", "<\\/script")


def image(spec, kind, **options):
    """Return a specification drawn as an image, of ``FORMATS``: text of an svg, bytes of the others."""
    return getattr(library("vl_convert"), "vegalite_to_" + kind)(_printable(spec), vl_version=VEGA_LITE, **options)


def _printable(value):
    """Return a JSON value with printable texts: vl-convert ends the process if an svg cannot hold a character."""
    if isinstance(value, dict):
        return {name: _printable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(each) for each in value]
    return printable(value) if isinstance(value, str) else value


def format_of(path):
    """Return the format of an image by its file extension; an ``AmpError`` lists the possible ones."""
    kind = os.path.splitext(str(path))[1].lower().lstrip(".")
    if kind not in FORMATS:
        formats = ", ".join("." + name for name in FORMATS)
        raise AmpError(f"Cannot draw {path}: its extension must be one of {formats}.")
    return kind


def save_figure(report, path, scale=1.5, drawn=None):
    """Draw all charts as one image, under the script, the verdicts and the advice; needs the extra ``report``.

    Args:
        report: the ``Report``.
        path: its extension selects the format: png, svg or pdf.
        scale: pixels of a PNG per unit; an image is about 1,100 units wide.
        drawn: the result of ``charts.charts(report)``, if known.
    """
    kind = format_of(path)
    spec = charts.figure(drawn or charts.charts(report), *text.image_heading(report))
    drawn = image(spec, kind, **({"scale": scale} if kind == "png" else {}))
    files.write(path, drawn)
