"""Hooks of mkdocs: pages that are built, the version in the footer, and a link back from the example of a report."""

import pathlib
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / ".ci"))

import built_pages  # noqa: E402

BACK = '<p style="margin:12px 16px;font:14px sans-serif"><a href="ab/index.html">← Documentation of ampcompat</a></p>'


def on_config(config):
    """Write the version of the package, read as text, into the footer."""
    source = (ROOT / "ampcompat" / "__init__.py").read_text(encoding="utf-8")
    config.copyright = "ampcompat " + re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE).group(1)
    return config


def on_files(files, config):
    """Add the pages that are not stored."""
    for name, content in built_pages.pages().items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown, **_):
    """Put the tables that are made from records into their places."""
    return built_pages.with_tables(markdown)


def on_post_build(config):
    """Add a link back to the documentation at the top of the example of a report."""
    path = pathlib.Path(config.site_dir, "ab_report.html")
    page, count = re.subn(
        r"<body[^>]*>", lambda found: found.group(0) + BACK, path.read_text(encoding="utf-8"), count=1
    )
    if not count:
        raise ValueError("docs/ab_report.html has no <body>")
    path.write_text(page, encoding="utf-8")
