"""What both zoos share: a row for each of many items, made in a process of its own, and the record of all rows.

A row is a dict: ``name``, ``group`` (of the record), ``cells`` (what was tried: what came of it) and
``left_out``, why nothing was tried. A cell is good if it begins with one of ``GOOD``.
"""

import datetime
import gc
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from importlib import metadata

import bench
import torch

import ampcompat

HERE = os.path.dirname(os.path.abspath(__file__))
GOOD = ("equal", "trains", "as it was", "same without amp", "as by hand", "refused")

OPTIONS = """
    --only      items, or beginnings of their names
    --draw      so many of the record's items, drawn by the hash of the commit
    --rows      a file to which rows are appended; the items that it has are not tried again
    --record    write the record from the rows of --rows
"""


def main(description, names, row_of, record, text, distributions):
    """Make the rows that the command line asks for; return 1 if one deviates and the record does not say so.

    Args:
        description: of the command, in one line.
        names: a function without arguments that returns the names of all items.
        row_of: a function that returns the row of a name.
        record: the name of the file of the record, beside this one.
        text: what the record begins with.
        distributions: the packages whose versions the record gives.
    """
    options = bench.options(f"{description}\n{OPTIONS}", only=[], draw=0, rows=None, record=False)
    listed = drawn(recorded(record)[0], options.draw) if options.draw else names()
    chosen = [each for each in listed if not options.only or each.startswith(tuple(options.only))]
    rows = rows_of(chosen, row_of, options.rows)
    if options.record:
        write_record(record, text, rows, distributions)
    deviations = recorded(record)[1]
    unknown = [(row["name"], what) for row in rows for what in bad_cells(row) if (row["name"], what) not in deviations]
    unknown += [(row["name"], row["left_out"]) for row in rows if options.draw and row.get("left_out")]
    for each in unknown:
        print("not in the record:", *each)
    return 1 if unknown else 0


def drawn(names, count):
    """Return some of the names, drawn by the hash of the commit."""
    git = ["git", "-C", HERE, "rev-parse", "HEAD"]
    commit = subprocess.run(git, stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
    return sorted(random.Random(commit.strip()).sample(sorted(names), min(count, len(names))))


def rows_of(names, row_of, path=None, seconds=240):
    """Make the rows of some names, print each, append it to a file; return them with those that the file had."""
    rows = read(path)
    torch.compiler.set_stance("force_eager")
    gc.freeze()  # garbage collection in the processes need not look at what has been imported
    known = {row["name"] for row in rows}
    for name in names:
        if name in known:
            continue
        start = time.time()
        row = isolated(row_of, name, seconds)
        if isinstance(row, str):
            row = {"name": name, "group": name.split()[0], "cells": {}, "left_out": row}
        rows.append(row)
        print(as_line(row), f"| {time.time() - start:.0f} s", flush=True)
        if path:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    return rows


def read(path):
    """Return the rows of a file, or none."""
    if not path or not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def isolated(function, argument, seconds):
    """Return a function's result, computed in a forked process with that much CPU time; or in words what ended that."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def compute():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        torch.set_num_threads(1)
        sys.stdout = sys.stderr = open(os.devnull, "w")
        sending.send(function(argument))

    process = context.Process(target=compute)
    process.start()
    sending.close()
    try:
        return receiving.recv()
    except EOFError:
        process.join()
        took_long = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
        return f"not done in {seconds} s of CPU time" if took_long else f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def attempt(function, *arguments, **options):
    """Return a function's result, or in words the error that it raised; then end the session."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return ("refused: " if isinstance(error, ampcompat.errors.AmpError) else "") + first_line(error)
    finally:
        ampcompat.reset()


def first_line(error):
    """Return an error's type and the first line of its message, made short."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:150]}"


def bad_cells(row):
    """Return the cells of a row that are not good."""
    return {what: cell for what, cell in row["cells"].items() if not cell.startswith(GOOD)}


def as_line(row):
    """Return a row as a line of a table."""
    cells = " | ".join(f"{what}: {cell}" for what, cell in row["cells"].items())
    return f"| {row['name']} | {row.get('left_out') or cells}"


def recorded(file_name):
    """Return the names in a record of what was tried, and the (name, what) of each deviation that it names."""
    with open(os.path.join(HERE, file_name), encoding="utf-8") as file:
        text = file.read()
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", section(text, "What deviates"), re.MULTILINE)
    deviations = {(name, what) for name, whats in rows for what in whats.split(", ")}
    groups = re.findall(r"^- (\S+) \(\d+\): (.*)$", section(text, "What was tried"), re.MULTILINE)
    return [f"{group} {name}" for group, names in groups for name in names.split(", ")], deviations


def section(text, heading):
    """Return the text below a heading."""
    return re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL).group(1)


def write_record(file_name, text, rows, distributions):
    """Write the record of all rows: versions, counts, each deviation, and the names of the rest by group."""
    rows = sorted(rows, key=lambda row: list(distributions).index(row["group"]))
    tried = [row for row in rows if not row.get("left_out")]
    by_group = {}
    for row in tried:
        by_group.setdefault(row["group"], []).append(row["name"].split(" ", 1)[1])
    system = f"{datetime.date.today()}, Python {sys.version.split()[0]}, a CPU, one thread: "
    lines = [text, system + ", ".join(f"{each} {metadata.version(each)}" for each in distributions) + ".", ""]
    lines += [f"**{len(tried)} of {len(by_group)} packages were tried, {len(rows) - len(tried)} were not.**", ""]
    lines += counts(tried) + ["", "## What deviates", "", "| name | what | what came of it |", "|---|---|---|"]
    for row in tried:
        alike = {}
        for what, cell in bad_cells(row).items():
            alike.setdefault(re.sub(r"^O\d: (?=\D)", "", cell), []).append(what)
        lines += [f"| {row['name']} | {', '.join(whats)} | {escaped(cell)} |" for cell, whats in alike.items()]
    lines += ["", "## No further from float32 than the level by hand", ""]
    for row in tried:
        far = [f"{what} {cell[12:]}" for what, cell in row["cells"].items() if cell.startswith("as by hand")]
        lines += [f"- {row['name']}: {escaped('; '.join(far))}"] if far else []
    refused = {}
    for row in tried:
        for what, cell in row["cells"].items():
            if cell.startswith("refused"):
                refused.setdefault(f"{what}: {cell[9:]}", []).append(row["name"])
    left_out = {}
    for row in rows:
        if row.get("left_out"):
            left_out.setdefault(row["left_out"], []).append(row["name"])
    for heading, groups in (("What was refused", refused), ("What was not tried", left_out)):
        lines += ["", f"## {heading}", ""]
        lines += [f"- {escaped(reason)} ({len(names)}): {', '.join(names)}" for reason, names in groups.items()]
    lines += ["", "## What was tried", ""]
    lines += [f"- {group} ({len(names)}): {', '.join(names)}" for group, names in by_group.items()]
    with open(os.path.join(HERE, file_name), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def counts(rows):
    """Return a table that counts, for each thing that was tried, what came of it."""
    lines = ["| what | tried | good | as by hand | refused | deviates |", "|---|---|---|---|---|---|"]
    for what in dict.fromkeys(what for row in rows for what in row["cells"]):
        cells = [row["cells"][what] for row in rows if what in row["cells"]]
        by_hand, refused = (sum(cell.startswith(each) for cell in cells) for each in ("as by hand", "refused"))
        bad = sum(not cell.startswith(GOOD) for cell in cells)
        good = len(cells) - by_hand - refused - bad
        lines.append(f"| {what} | {len(cells)} | {good} | {by_hand} | {refused} | {bad} |")
    return lines


def escaped(text):
    """Return a text that can stand in a cell of a table."""
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*").replace("_", "\\_")
