"""HTML elements as strings, with all text escaped, and the style sheet of the page."""

import html
import re
from collections import namedtuple

#: Code points that XML and HTML do not allow.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

#: Nothing is loaded. Vega compiles its expressions, which is evaluation.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)

#: A cell of a table with a bar behind its text; ``share`` is from 0 to 1.
Bar = namedtuple("Bar", "text share")


def escape(value):
    """Return any value as escaped text for an element or for an attribute in double quotes."""
    return html.escape(_CONTROLS.sub("\ufffd", str(value)), quote=True)


def document(title, body, scripts=""):
    """Return a whole page; ``scripts`` are elements at its end."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="{}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{}\n</main>\n{}</body>\n</html>\n"
    ).format(_POLICY, escape(title), STYLE, body, scripts)


def table(caption, titles, rows, kind="numbers"):
    """Return a table that scrolls by itself where the page is narrow; first cells are headings of rows."""
    numeric = [
        all(_NUMBER.match(row[place].text if isinstance(row[place], Bar) else str(row[place])) for row in rows)
        for place in range(len(titles))
    ]
    classes = [_RIGHT if right else "" for right in numeric]
    head = "".join('<th scope="col"{}>{}</th>'.format(name, escape(title)) for name, title in zip(classes, titles))
    body = "".join("<tr>{}</tr>\n".format(_cells(row, classes)) for row in rows)
    return (
        '<div class="scroll" role="region" tabindex="0" aria-label="{0}">\n'
        '<table class="{1}">\n<caption><span>{0}</span></caption>\n'
        "<thead><tr>{2}</tr></thead>\n<tbody>\n{3}</tbody>\n</table>\n</div>"
    ).format(escape(caption), kind, head, body)


#: Cells of columns of numbers are aligned to the right.
_NUMBER = re.compile("([-+\u2212\u00d7]? ?[0-9].*|-|[-+\u2212]?(nan|inf)|none)$")
_RIGHT = ' class="right"'


def _cells(row, classes):
    first = '<th scope="row">{}</th>'.format(escape(row[0]))
    return first + "".join("<td{}>{}</td>".format(name, _cell(cell)) for name, cell in zip(classes[1:], row[1:]))


def _cell(cell):
    if not isinstance(cell, Bar):
        return escape(cell)
    bar = '<span class="bar" style="width:{:.0f}%"></span>{}'
    return bar.format(100 * cell.share, escape(cell.text))


def section(title, parts, level=2):
    """Return a section with a heading, or an empty string if it has no parts."""
    parts = [part for part in parts if part]
    if not parts:
        return ""
    return "<section>\n<h{0}>{1}</h{0}>\n{2}\n</section>".format(level, escape(title), "\n".join(parts))


def paragraphs(lines, kind=""):
    """Return a paragraph for each line."""
    opening = '<p class="{}">'.format(kind) if kind else "<p>"
    return "\n".join("{}{}</p>".format(opening, escape(line)) for line in lines if line.strip())


def description_list(items, kind="pairs"):
    """Return a list of terms and their descriptions."""
    rows = "\n".join("<div><dt>{}</dt><dd>{}</dd></div>".format(escape(term), escape(text)) for term, text in items)
    return '<dl class="{}">\n{}\n</dl>'.format(kind, rows) if rows else ""


def details(summary, content):
    """Return a ``<details>`` element, closed on a screen and open in print."""
    return "<details>\n<summary>{}</summary>\n{}\n</details>".format(escape(summary), content)


def preformatted(value):
    """Return text with its line breaks, such as a traceback."""
    return '<pre tabindex="0">{}</pre>'.format(escape(value))


def figure(svg, spec, name, title, caption):
    """Return a chart: an image, and the specification that replaces it where JavaScript runs."""
    described = '<svg role="img" aria-label="{}" '.format(escape("{}. {}".format(title, caption)))
    return (
        '<figure class="chart" id="chart-{}">\n<h3>{}</h3>\n<div class="drawn">{}</div>\n'
        '<script type="application/json">{}</script>\n<figcaption>{}</figcaption>\n</figure>'
    ).format(escape(name), escape(title), svg.replace("<svg ", described, 1), spec, escape(caption))


STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1b1b1b; --soft: #595959; --line: #d4d4d4; --page: #fff; --box: #f4f6f8; --mark: #0072b2
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #b0b0b0; --line: #444; --page: #16181b; --box: #22262b; --mark: #56b4e9 }
}
* { box-sizing: border-box }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", Arial, sans-serif
}
main { max-width: 76rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .4rem 0 }
h2 { font-size: 1.25rem; margin: 2rem 0 .6rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem }
h3 { font-size: 1.05rem; margin: 1.2rem 0 .4rem }
h1, h2, h3, p, dt, dd, figcaption, li, summary { overflow-wrap: anywhere }
p { margin: .4rem 0; max-width: 46rem }
.about, figcaption, caption, .note { color: var(--soft); font-size: .9rem }
.advice {
  background: var(--box); border-left: 4px solid var(--mark); border-radius: 0 6px 6px 0;
  padding: .8rem 1rem; max-width: 60rem
}
.advice p { max-width: none }
.advice p:first-child { font-size: 1.1rem; font-weight: 600 }
.scroll { overflow-x: auto; container-type: inline-size; margin: 0 0 1.2rem }
.scroll:focus-visible, pre:focus-visible, summary:focus-visible { outline: 2px solid var(--mark) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem }
caption { text-align: left; caption-side: top; padding: 0 0 .3rem }
caption span { display: inline-block; position: sticky; left: 0; max-width: calc(100vw - 2rem); max-width: 100cqw }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
.numbers th, .numbers td { white-space: nowrap }
.numbers .right { text-align: right }
.overview td:last-child { white-space: normal; min-width: 16rem }
tbody th {
  position: sticky; left: 0; background: var(--page); font-weight: 600;
  max-width: 40vw; overflow: hidden; text-overflow: ellipsis
}
dl { margin: .6rem 0 }
dl > div {
  display: grid; grid-template-columns: minmax(4rem, max-content) 1fr; gap: 0 1rem;
  padding: .25rem 0; max-width: 52rem
}
.pairs > div { grid-template-columns: 8rem 1fr; border-bottom: 1px solid var(--line) }
dt { font-weight: 600 }
dd { margin: 0 }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.5rem 2rem }
figure { margin: 0; min-width: 0; break-inside: avoid }
figure h3 { margin: 0 0 .3rem }
.drawn { overflow-x: auto; min-height: 15rem }
.drawn, .drawn.vega-embed { width: 100% }
.drawn > svg { max-width: 100%; height: auto; background: #fff }
.vega-bindings { font-size: .85rem; color: var(--soft); display: flex; gap: 1rem; flex-wrap: wrap }
figcaption { margin-top: .3rem }
.verdicts { list-style: none; padding: 0; margin: .8rem 0 }
.verdicts li { padding: .2rem 0; max-width: 60rem }
.badge {
  display: inline-block; min-width: 6.2rem; text-align: center; padding: .05rem .5rem; border-radius: 1rem;
  font-size: .85rem; font-weight: 600; color: #fff; background: #63666a; margin: 0 .4rem
}
.badge.accepted { background: #1a7f37 }
.badge.rejected, .badge.failed { background: #c0282d }
.command { display: flex; gap: .6rem; align-items: center; max-width: none }
.command code { overflow-x: auto; white-space: nowrap; font: .85rem ui-monospace, "DejaVu Sans Mono", monospace }
.bar { display: inline-block; height: .7em; background: var(--mark); opacity: .55; margin-right: .4rem }
.bar { max-width: 5rem }
details { margin: .5rem 0 }
summary { cursor: pointer }
pre {
  background: var(--box); border-radius: 6px; padding: .8rem; overflow-x: auto;
  font: .85rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace
}
ol, ul { padding-left: 1.3rem; max-width: 50rem }
@media (max-width: 30rem) {
  main { padding: .75rem }
  .pairs > div { grid-template-columns: 1fr; padding: .35rem 0 }
}
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #333; --line: #bbb; --page: #fff; --box: #f3f3f3 }
  body { font-size: 10pt }
  main { max-width: none; padding: 0 }
  h2 { break-after: avoid }
  tr, .advice, dl > div { break-inside: avoid }
  .figures { grid-template-columns: 1fr 1fr }
  .scroll, pre { overflow: visible }
  .overview td:last-child { min-width: 0 }
  table { font-size: 8pt }
  th, td { padding: .15rem .35rem }
  .numbers thead th { white-space: normal }
  pre { white-space: pre-wrap; overflow-wrap: anywhere }
  details::details-content { content-visibility: visible; display: block; height: auto }
}
"""
