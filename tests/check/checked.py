"""Runs ``check`` on files that are written for a test."""

import json
import textwrap

from ampcompat.cli import main


def write(folder, files):
    """Write files, name -> text; texts may be indented."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def check(folder, capsys, **files):
    """Write files (``train`` is ``train.py``) and return the JSON report of ``check`` on the folder."""
    write(folder, {name + ".py": text for name, text in files.items()})
    capsys.readouterr()
    code = main(["check", str(folder), "--json", "-"])
    report = json.loads(capsys.readouterr().out)
    assert code == report["exit_code"]
    return report


def rules(report):
    """Return (rule, line) of each finding."""
    return [(finding["rule"], finding["line"]) for finding in report["findings"]]


def notebook(*cells):
    """Return the text of a notebook with these code cells."""
    rows = [{"cell_type": "code", "source": cell.splitlines(True), "metadata": {}, "outputs": []} for cell in cells]
    return json.dumps({"cells": rows, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
