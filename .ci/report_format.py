"""Makes the page on the JSON form of a report from the fields of its dataclasses and the comments on them.

    python .ci/report_format.py    # prints it; the site has it too, by docs_hooks.py

The code is read as text: building the site needs no torch.
"""

import ast
import pathlib
import re

SOURCES = [
    pathlib.Path(__file__).resolve().parents[1] / "ampcompat" / "abtest" / name
    for name in ("report_data.py", "schema.py")
]
#: The dataclasses in the order of the page.
CLASSES = "Report Run Speed Equivalence Series Memory Finding".split()
HEAD = """# What is in the JSON form of a report?

    $ ampcompat ab --json report.json.gz train.py
    $ ampcompat report report.json.gz

`ampcompat ab --json FILE` writes a report in this form, schema {schema}, as UTF-8; a file whose name ends in `.json.gz`
is compressed. The top level is a [Report](#report), which has `"schema"` in addition to the names in its table. Unknown
names are ignored, and missing ones get a default. Everything else is checked: `ampcompat report` rejects a damaged file
with one sentence that says where the error is.

In a **packed list**, an entry `[value, times]` stands for `times` copies of that value: `[[1, 3], 5]` is 1, 1, 1, 5.
**Steps** count from 0 and are written as the difference from the previous step, the first as that from -1:
`[[1, 3], 2]` are the steps 0, 1, 2 and 4. Numbers that are not finite are the strings "nan", "inf" and "-inf". In
Python the file is a `Report`:

```python
import os
import tempfile

from ampcompat.abtest import Report, Run

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "report.json.gz")
    Report(runs={{"O0": Run(loss=[(0, 0, 2.0), (1, 0, 1.5)])}}).save(path)
    report = Report.load(path)
assert report.runs["O0"].losses() == {{0: 2.0, 1: 1.5}}
```
"""

COUNT, COUNTS = "a whole number from 0 up", "a packed list of whole numbers from 0 up"
#: What a value is in JSON, by its type or its own form; that of a list or an optional value is made of its parts.
WORDS = {
    "str": "text",
    "int": COUNT,
    "float": "a number",
    "object": "any value, in Unicode, with whole numbers of up to 64 bits",
    "STEPS": "a packed list of whole numbers",
    "SAMPLES": COUNTS,
    "SECONDS": COUNTS,
    "_COUNTS": COUNTS,
    "LOSSES": "a [Series](#series)",
    "METRICS": "an object of names, each a [Series](#series)",
    "choice(*STATUSES)": "one of ok, stopped, failed, interrupted",
    "_column({int, float})": 'a packed list of numbers, or "nan", "inf", "-inf"',
}


def in_words(node):
    """Return what a value of this annotation, or of this form, is in JSON."""
    text = ast.unparse(node).replace("'", "")
    if text in WORDS:
        return WORDS[text]
    if isinstance(node, ast.Name):
        return f"{'an' if node.id[0] in 'EO' else 'a'} [{node.id}](#{node.id.lower()})"
    if isinstance(node, ast.Constant):  # a class that is not yet defined
        return in_words(ast.Name(node.value))
    if isinstance(node, ast.Call):
        if node.func.id == "choice":
            return "one of " + ", ".join(str(each.value) for each in node.args)
        return in_words(node.args[0]) + ", or null"
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    words = [in_words(each) for each in parts]
    if node.value.id == "Tuple":
        return "[" + ", ".join(words) + "]"
    return {
        "Optional": "{}, or null".format,
        "List": "a list, each {}".format,
        "Dict": "an object of names, each {1}".format,
    }[node.value.id](*words)


def row_of(field, lines):
    """Return (name in JSON, what it is, what its comment says) of a field of a dataclass."""
    name, form = field.target.id, field.annotation
    value = field.value
    if isinstance(value, ast.Call) and value.func.id == "special":
        form = value.args[0]
        name = value.args[1].value if len(value.args) > 1 else name
    elif isinstance(value, ast.Call) and value.func.id != "field":
        form = value
    comment = lines[field.end_lineno - 1][field.end_col_offset :].partition("#")[2].strip()
    above = field.lineno - 2
    while lines[above].strip().startswith("#:"):
        comment = f"{lines[above].strip()[2:].strip()} {comment}".strip()
        above -= 1
    return name, in_words(form), comment


def rows():
    """Return {dataclass: (docstring, its rows)}."""
    found = {}
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and node.name in CLASSES:
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                found[node.name] = ast.get_docstring(node), [row_of(each, text.splitlines()) for each in fields]
    return found


def page():
    """Return the page, as Markdown."""
    schema = re.search(r"^SCHEMA = (\d+)$", SOURCES[0].read_text(encoding="utf-8"), re.MULTILINE).group(1)
    parts, found = [HEAD.format(schema=schema)], rows()
    for name in CLASSES:
        docstring, fields = found[name]
        table = "".join(f"| `{key}` | {words} | {told} |\n" for key, words, told in fields)
        told = docstring.replace("None", "null")
        parts.append(f"\n## {name}\n\n{told}\n\n| name | value | |\n|---|---|---|\n{table}")
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
