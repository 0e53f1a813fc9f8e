"""What the site has and docs/ does not: its first page, the JSON form of a report, and tables made from records."""

import pathlib
import re

import autocast_lists
import every_torch
import report_format

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
END = "<!-- the site's first page ends here -->\n"


def first_page():
    """Return the first half of the README, with links from docs/."""
    text, mark, _ = README.read_text(encoding="utf-8").partition(END)
    if not mark:
        raise ValueError(f"README.md has no line {END.strip()}")
    return re.sub(r"\]\(docs/", "](", text)


def with_tables(text):
    """Return a page with a table in place of each line that gives the script that makes it."""
    for script, table in (
        ("every_torch", every_torch.table(every_torch.read_results())),
        ("autocast_lists", autocast_lists.table(autocast_lists.read_records())),
    ):
        text = text.replace(f"<!-- table: .ci/{script}.py -->\n", table)
    return text


def pages():
    """Return {name: Markdown}."""
    return {"index.md": first_page(), "report_format.md": report_format.page()}
