"""Record which functions torch's autocast casts, as torch's own tests list them; print the table that the site has.

    python .ci/autocast_lists.py 2.4.1    # record a release; without one, print the table
    python .ci/autocast_lists.py 2.13.0 --file torch/testing/_internal/autocast_test_lists.py   # of an installed torch

The lists are in ``torch/testing/_internal/autocast_test_lists.py`` of a release's wheel. It is read, not run, so the
release is not installed; the wheels for macOS are downloaded, since they are the smallest. The records are in
.ci/autocast_lists.json: the releases that were read, and for each function the releases from which on its rule differs.
"""

import argparse
import ast
import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from every_torch import ROOT, minor, rows

sys.path.insert(0, str(ROOT))

from ampcompat.engine.op_table import expansion  # noqa: E402

RECORDS = ROOT / ".ci" / "autocast_lists.json"

LISTS = "torch/testing/_internal/autocast_test_lists.py"
DEVICES = {"AutocastTestLists": "CUDA", "AutocastCPUTestLists": "CPU"}
#: A list is named by a namespace and a rule, such as ``torch_fp32``.
OWNERS = {"torch": "torch", "nn": "torch.nn.functional", "linalg": "torch.linalg", "methods": "torch.Tensor"}
RULES = {"fp16": "half", "bf16": "half", "16": "half", "fp32": "float32"}
RULES.update(need_autocast_promote="widest", expect_builtin_promote="widest")
PLATFORMS = ("macosx_10_9_x86_64", "macosx_11_0_arm64", "macosx_14_0_arm64")

#: What a rule of the op table is called on the page; a function of any other rule has the dtype of its input.
OF_O1 = {"half": "half", "float": "float32", "promote": "widest", "sequence": "widest", "banned": "refused"}
INPUT = "input"
#: Functions that a public one calls: what their names begin with, and the row of the op table that casts for them.
CALLED_BY = {
    "torch.nn.functional.upsample_": "torch.nn.functional.interpolate",
    "torch.nn.functional.nll_loss2d": "torch.nn.functional.nll_loss",
}


def lists_of(source):
    """Return {device: {function: rule}} of the text of a release's test lists."""
    found = {}
    for defined in [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]:
        if defined.name not in DEVICES:
            continue
        rules = found.setdefault(DEVICES[defined.name], {})
        for node in ast.walk(defined):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                listed = node.targets[0].attr
                owner, _, rule = listed.partition("_")
                owner, rule = ("nn", "refused") if listed == "banned" else (owner, RULES[rule])
                rules.update((_name(owner, each), rule) for each in node.value.elts)
    return found


def _name(owner, case):
    """Return the dotted name of the function of a case of a list, a tuple that begins with its name."""
    name = ast.literal_eval(case.elts[0])
    return OWNERS[owner] + "." + (name[len("linalg_") :] if name.startswith("linalg_") else name)


def download(release):
    """Return the text of the test lists in the wheel of a release."""
    (python,) = [row[1] for row in rows() if row[0] == release]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
        command += [option for each in PLATFORMS for option in ("--platform", each)]
        subprocess.run(command + ["--python-version", python, "--dest", folder, "torch==" + release], check=True)
        (wheel,) = glob.glob(os.path.join(folder, "*.whl"))
        with zipfile.ZipFile(wheel) as files:
            return files.read(LISTS).decode()


def read_records():
    """Return {minor release: what ``lists_of`` returns}, oldest first."""
    stored, records = json.loads(RECORDS.read_text(encoding="utf-8")), {}
    for device, releases in stored["releases"].items():
        current = {}
        for name in releases:
            current.update((function, first[name]) for function, first in stored[device].items() if name in first)
            rules = {function: rule for function, rule in current.items() if rule != INPUT}
            records.setdefault(name, {})[device] = rules
    return {name: records[name] for name in _oldest_first(records)}


def write_records(records):
    """Write the records: {function: {the release from which on it has a rule: the rule}} for each device."""
    records = {name: records[name] for name in _oldest_first(records)}
    releases = {device: [name for name in records if device in records[name]] for device in DEVICES.values()}
    parts = ['"releases": ' + json.dumps(releases)]
    for device in releases:
        rules = rules_by_release(records, device)
        changes = [f"{json.dumps(name)}: {json.dumps(_changes(rules[name]))}" for name in sorted(rules)]
        parts.append('"{}": {{\n {}\n}}'.format(device, ",\n ".join(changes)))
    RECORDS.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _oldest_first(records):
    return [minor(row[0]) for row in rows() if minor(row[0]) in records]


def _changes(rules):
    """Return the first release of each rule that differs from the one before, of {release: rule}."""
    names = list(rules)
    return {name: rules[name] for before, name in zip([None] + names, names) if rules.get(before, INPUT) != rules[name]}


def rules_by_release(records, device):
    """Return {function: {release: its rule, or "input"}} for the releases that have lists for the device."""
    listed = {name: lists[device] for name, lists in records.items() if device in lists}
    functions = {function for rules in listed.values() for function in rules}
    return {function: {name: rules.get(function, INPUT) for name, rules in listed.items()} for function in functions}


def in_words(rules):
    """Return a cell: the rule of each span of releases, such as "input to 2.3, then widest"."""
    releases, spans = list(rules), []
    for name in releases:
        if spans and spans[-1][0] == rules[name]:
            spans[-1][1] = name
        else:
            spans.append([rules[name], name])
    if len(spans) == 1:
        return spans[0][0]
    parts = [f"{rule} to {last}" for rule, last in spans[:-1]] + [f"then {spans[-1][0]}"]
    return ", ".join(parts)


def of_o1(name, table):
    """Return the cell of a function for O1 and O4; private functions have none, as the op table casts what calls them.

    Args:
        table: {function: its rule in the op table}.
    """
    if name.rpartition(".")[2].startswith("_"):
        return ""
    names = [name, name.replace("torch.", "torch._VF.", 1)]
    names += [caller for begin, caller in CALLED_BY.items() if name.startswith(begin)]
    return next((OF_O1.get(table[each], INPUT) for each in names if each in table), INPUT)


def table(records):
    """Return the table of docs/machine.md, in Markdown: the functions whose rule is not the same in all releases."""
    devices = {device: rules_by_release(records, device) for device in DEVICES.values()}
    changed = {name for rules in devices.values() for name, each in rules.items() if len(set(each.values())) > 1}
    ours = {f"{row.owner}.{row.name}": row.rule for row in expansion.rows()}
    lines = ["| function | autocast on CUDA | autocast on a CPU | O1 and O4 |", "|---|---|---|---|"]
    for name in sorted(changed, key=lambda name: (name.rpartition(".")[0], name)):
        cells = [in_words(rules[name]) if name in rules else INPUT for rules in devices.values()]
        lines.append("| " + " | ".join(["`" + name + "`"] + cells + [of_o1(name, ours)]) + " |")
    newest = list(records)[-1]
    first = {device: next(name for name in records if device in records[name]) for device in devices}
    spans = [f"{device} {oldest} to {newest}" for device, oldest in first.items()]
    return "\n".join(["", "Recorded: {}.".format(", ".join(spans)), ""] + lines + ["", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", nargs="?", choices=[row[0] for row in rows()], metavar="X.Y.Z")
    parser.add_argument("--file", type=pathlib.Path, help="read this file instead of a wheel")
    options = parser.parse_args()
    records = read_records()
    if options.release:
        source = options.file.read_text(encoding="utf-8") if options.file else download(options.release)
        records[minor(options.release)] = lists_of(source)
        write_records(records)
    print(table(read_records()))


if __name__ == "__main__":
    main()
