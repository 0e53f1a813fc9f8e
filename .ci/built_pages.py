"""The pages of the site that are not stored in docs/: its first page, and the JSON form of a report."""

import pathlib
import re

import report_format

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
END = "<!-- the site's first page ends here -->\n"


def first_page():
    """Return the first half of the README, with links from docs/."""
    text, mark, _ = README.read_text(encoding="utf-8").partition(END)
    if not mark:
        raise ValueError(f"README.md has no line {END.strip()}")
    return re.sub(r"\]\(docs/", "](", text)


def pages():
    """Return {name: Markdown}."""
    return {"index.md": first_page(), "report_format.md": report_format.page()}
