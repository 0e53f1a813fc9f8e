"""The page Specification: sections that tests and docstrings cite exist; its tables and signatures are the code's."""

import inspect
import pathlib
import re

from ampcompat import amp
from ampcompat.opt_levels import OPT_LEVELS

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "specification.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^(##|###) ([\d.]*\d)\.? (.+)$", PAGE, re.MULTILINE)


def cited():
    """Yield (file, number) for each number after "Specification" in the tests and the package."""
    for folder in ("ampcompat", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for numbers in re.findall(r"Specification (\d[\d.]*(?:(?:, | and )\d[\d.]*)*)", path.read_text("utf-8")):
                for number in re.findall(r"\d+(?:\.\d+)?", numbers):
                    yield path.name, number


def test_every_cited_section_exists():
    numbers = {number for _, number, _ in HEADINGS}
    found = list(cited())
    assert len(found) > 15
    assert [(name, number) for name, number in found if number not in numbers] == []


def test_sections_are_numbered_in_order():
    counted, section, part = [], 0, 0
    for mark, _, _ in HEADINGS:
        section, part = (section + 1, 0) if mark == "##" else (section, part + 1)
        counted.append(f"{section}.{part}" if part else str(section))
    assert [number for _, number, _ in HEADINGS] == counted
    assert len(re.findall(r"^##+ ", PAGE, re.MULTILINE)) == len(counted)


def test_the_defaults_of_the_levels_are_those_of_the_code():
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:1] == "|"]
    header, _, *rows = rows
    assert header[1:] == list(OPT_LEVELS) and len(rows) == 6
    for option, *cells in rows:
        for level, cell in zip(header[1:], cells):
            value = getattr(OPT_LEVELS[level], option)
            shown = f'"{value}"' if isinstance(value, str) else str(value).replace("torch.", "")
            assert cell == shown, (level, option)


def test_the_signatures_are_those_of_the_functions():
    signatures = re.findall(r"^```text\n((?:initialize|scale_loss)\(.*?\))\n```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(signatures) == 2
    for text in signatures:
        name, names = text.partition("(")[0], {}
        exec(f"def {text}: pass", names)
        shown = inspect.signature(names[name]).parameters
        actual = inspect.signature(getattr(amp, name)).parameters
        positional = [each for each in actual.values() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        assert [(each.name, each.default) for each in positional] == [(n, p.default) for n, p in shown.items()]
