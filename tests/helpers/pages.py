"""Parses an HTML page for tests."""

import re
from html.parser import HTMLParser

import pytest

_VOID = {"meta", "link", "br", "hr", "img", "input", "col", "wbr", "base", "source", "area", "embed", "track", "param"}


def skip_without_report_extra():
    """Skip a test where pages cannot be made."""
    for name in ("vl_convert", "jinja2"):
        pytest.importorskip(name, reason="pages need vl-convert-python and jinja2, of the extra `report`")


class PageReader(HTMLParser):
    """The elements of a page: ``tags`` with their attributes, ``text`` outside style, and ``errors`` of nesting."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.errors, self._open = [], "", [], []
        self.feed(page)
        self.close()
        self.errors += ["never closed: " + tag for tag in self._open]

    def handle_starttag(self, tag, attrs):
        """Record an element, and open it."""
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Record an element that closes itself, as those of SVG do."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        """Close an element, which must be the last one that was opened."""
        if not self._open or self._open.pop() != tag:
            self.errors.append(f"wrong closing tag: {tag} at {self.getpos()}")

    def handle_data(self, data):
        """Collect the text."""
        if self._open and self._open[-1] != "style":
            self.text += data

    def all(self, tag):
        """Return the attributes of every element of that name."""
        return [attrs for name, attrs in self.tags if name == tag]

    def references(self):
        """Return everything that an attribute refers to."""
        names = ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background", "formaction")
        found = [attrs[name] for _, attrs in self.tags for name in names if attrs.get(name)]
        values = [value for _, attrs in self.tags for value in attrs.values() if value]
        return found + [each for value in values for each in re.findall(r"url\(([^)]*)\)", value)]
