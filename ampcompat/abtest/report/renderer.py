"""Vega-Lite, by way of vl-convert: draws specifications as images, and has the JavaScript for interactive charts.

One specification makes the chart of the page and that of the image. vl-convert alone is enough for that: it has no
dependencies and one wheel for Python 3.7 to 3.13, where Altair, which would write the same specifications, differs.
"""

import importlib.util
import struct
import zlib

from ...errors import AmpError

NOT_INSTALLED = "Pages and images need vl-convert-python, which is not installed: pip install 'ampcompat[report]'."

#: The version of Vega-Lite that specifications are written for.
VEGA_LITE = "5.20"

FORMATS = ("png", "svg", "pdf")


def is_installed():
    """Return whether pages and images can be made."""
    return importlib.util.find_spec("vl_convert") is not None


def _library():
    try:
        import vl_convert
    except ImportError:
        raise AmpError(NOT_INSTALLED) from None
    return vl_convert


def javascript():
    """Return JavaScript that defines ``vegaEmbed``; it loads nothing."""
    # Within a script element "</script" would end it; it occurs in strings at most.
    return _library().javascript_bundle(vl_version=VEGA_LITE).replace("</script", "<\\/script")


def image(spec, kind="png", scale=2.0):
    """Return a specification drawn as an image: bytes, of SVG text.

    Args:
        spec: a dict.
        kind: png, svg or pdf.
        scale: pixels of a PNG per unit of the specification.
    """
    library = _library()
    if kind == "png":
        return _compressed(library.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=scale))
    if kind == "pdf":
        return library.vegalite_to_pdf(spec, vl_version=VEGA_LITE)
    return library.vegalite_to_svg(spec, vl_version=VEGA_LITE).encode("utf-8")


def _compressed(png):
    """Return the same picture in a third of the bytes: vl-convert compresses for speed."""
    chunks, place = [], 8
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        chunks.append((png[place + 4 : place + 8], png[place + 8 : place + 8 + length]))
        place += 12 + length
    data = zlib.compress(zlib.decompress(b"".join(body for name, body in chunks if name == b"IDAT")), 9)
    chunks = [chunks[0]] + [each for each in chunks[1:-1] if each[0] != b"IDAT"] + [(b"IDAT", data), chunks[-1]]
    packed = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    ]
    return png[:8] + b"".join(packed)
