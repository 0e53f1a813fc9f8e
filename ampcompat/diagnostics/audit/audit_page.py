"""The report of an audit as one HTML page, which loads nothing and needs no other package."""

import html
import os

from ...abtest import report as report_package
from . import audit_text

_STYLE = os.path.join(os.path.dirname(os.path.abspath(report_package.__file__)), "page.css")

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} – ampcompat</title>
<style>{style}</style>
</head>
<body>
<main>
<header><h1>{title}</h1></header>
{sections}
</main>
</body>
</html>
"""


def to_html(report, command, launcher=()):
    """Return a page; the arguments are those of ``audit_text.to_text``."""
    sections = []
    for finding in report["findings"]:
        parts = [_element("p", finding["text"]), _element("p", finding["remedy"])]
        parts += [_table(("param", "elements", "did not move", "updates lost"), map(_row, finding["layers"]))]
        title = "{}: {}".format("Wrong" if finding["is_wrong"] else "Note", finding["kind"].replace("_", " "))
        sections.append(_section(title, "\n".join(parts)))
    repair = audit_text.commands(report, command, launcher)
    if repair:
        sections.append(_section("Repair", _list([(what, _element("code", command)) for what, command in repair])))
    dtypes = [(of, html.escape(text)) for of, text in audit_text.dtypes(report["dtypes"])]
    sections.append(_section("Dtypes", _list(dtypes)))
    layers = [(each["name"], each["layer"], *_dtypes(each)) for each in report["dtypes"]["activations"] or ()]
    if layers:
        sections.append(_section("Layers", _table(("layer", "class", "gets", "weights", "returns"), layers)))
    columns = ("tensor", "is a", "dtype", "elements", "gradient", "optimizer state", "did not move", "updates lost")
    sections.append(_section("Tensors", _table(columns, map(_tensor, report["tensors"]))))
    with open(_STYLE, encoding="utf-8") as file:
        style = file.read()
    title = html.escape(audit_text.title(report, command))
    return _PAGE.format(title=title, style=style, sections="\n".join(sections))


def _dtypes(layer):
    return (", ".join(layer[part]) or "-" for part in ("inputs", "weights", "outputs"))


def _row(layer):
    return (layer["name"], f"{layer['numel']:,}", *audit_text.moves(layer))


def _tensor(row):
    state = ", ".join(sorted(set((row["state"] or {}).values())))
    names = row["name"], row["kind"], row["dtype"], f"{row['numel']:,}", row["gradient"] or "-", state or "-"
    return (*names, *audit_text.moves(row))


def _element(name, text):
    return f"<{name}>{html.escape(text)}</{name}>"


def _section(title, content):
    return "<section>\n{}\n{}\n</section>".format(_element("h2", title), content)


def _list(rows):
    """Return a list of names and their HTML, whose long lines wrap."""
    return "<dl>\n{}\n</dl>".format(
        "\n".join(f"<div>{_element('dt', name)}<dd>{text}</dd></div>" for name, text in rows)
    )


def _table(columns, rows):
    lines = ["<tr>{}</tr>".format("".join(_element("td", cell) for cell in row)) for row in rows]
    if not lines:
        return ""
    head = "<thead><tr>{}</tr></thead>".format("".join(_element("th", column) for column in columns))
    return '<div class="scroll">\n<table>\n{}\n{}\n</table>\n</div>'.format(head, "\n".join(lines))
