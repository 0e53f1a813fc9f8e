"""Writes the table of the parts of Apex in docs/apex_scripts.md, from the files of the package ``ampcompat/apex/site``.

    python .ci/readme_support.py

A test compares the page with ``rows()``.
"""

import pathlib

from ampcompat.static_analysis.reading import alias_names

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "apex_scripts.md"
BEGIN, END = "<!-- what .ci/readme_support.py writes -->\n", "<!-- end of what it writes -->\n"

#: Compiled modules: what Apex's own Python code and a few scripts call of them.
EXTENSIONS = "the functions that Apex's own Python code calls"
#: Modules with more names than a cell can hold.
NOTES = {"apex.fp16_utils": "`FP16_Optimizer` and the other names of scripts from before `amp.initialize`"}


def public_names(module):
    """Return the names of a carried module that are neither submodules nor private, sorted."""
    names = alias_names.alias_names()
    return sorted(each for each in names.modules[module] if each[0] != "_" and f"{module}.{each}" not in names.modules)


def rows():
    """Return the lines of the table: one per module, then one for what importing is an error."""
    carried = alias_names.alias_names().modules
    top = [each for each in sorted(carried) if each.count(".") == 1 and not each.startswith("apex._")]
    found = ["| module | support | |", "|---|---|---|"]
    for module in top:
        inner = sorted(each.rpartition(".")[2] for each in carried if each.rpartition(".")[0] == module)
        if module == "apex.contrib":
            found.append(f"| `{module}` | in part | only {_listed(inner)} |")
        elif module in alias_names.PARTIAL:
            found.append(f"| `{module}` | imports | {alias_names.PARTIAL[module]} |")
        else:
            found.append(f"| `{module}` | full | {_told(module)} |")
    extensions = sorted(each for each in carried if "." not in each and each != "apex")
    found.append(f"| {_listed(extensions)} | in part | {EXTENSIONS} |")
    found.append(f"| {_listed(refused())} | no | importing them raises an `ImportError` that names a replacement |")
    return found


def refused():
    """Return the modules with a replacement that the alias does not have; those of ``apex.contrib`` are one entry."""
    carried = alias_names.alias_names().modules
    absent = {each for each in alias_names._replacements() if each not in carried and each.count(".") == 1}
    return sorted(absent) + ["the rest of apex.contrib"]


def _told(module):
    if module == "apex.amp":
        partial = sorted(each for each in alias_names.PARTIAL if each.startswith("apex.amp."))
        return f"the API from before 2019 in part: {_listed(partial)}"
    return NOTES.get(module) or _listed(public_names(module))


def _listed(names):
    return ", ".join(each if " " in each else f"`{each}`" for each in names)


def write():
    """Put the table into its place on the page."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(head + BEGIN + "\n".join(rows()) + "\n" + END + tail, encoding="utf-8")


if __name__ == "__main__":
    write()
