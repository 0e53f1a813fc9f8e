"""Do public training scripts without Apex train at every opt level, unchanged? One row per script.

    python benchmarks/forced_scripts.py FOLDER [--only NAME ...] [--python PYTHON] [--keep FOLDER] [--list apex]

``forced_scripts.md`` lists where each script of FOLDER comes from. Each is run unchanged and by ``python -m ampcompat
run --opt-level LEVEL``, with small random data and few steps (``script_data/``); its code is not changed. Scripts
written for CUDA run with ``--device cpu``. A cell has the exit code if it is not 0, and whether the level was in force
at the end; then the difference between the losses and those of the script unchanged (the mean of the last quarter,
relative to that of the unchanged one, or to the standard deviation of its losses if that is larger). O0 says ``equal``
where all losses and final weights are equal bit for bit, as must be for a float32 script that repeats itself.

``--list apex`` runs scripts that use Apex, which ``apex_scripts.md`` lists, at their own level. A row has the number of
backward passes, the means of the first and of the last quarter of the losses, and how far these are from those of
``run --opt-level O0``, which puts O0 in place of the script's own level.
"""

import argparse
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "script_data")
sys.path.insert(0, DATA)

import apex_list  # noqa: E402
import data  # noqa: E402
import forced_list  # noqa: E402

LEVELS = ("O0", "O2", "O1", "O5", "O4")


def main():
    """Print a row per script; return 1 if a script does not run at a level, or O0 differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="the scripts, in the folders that forced_list.py names")
    parser.add_argument("--only", nargs="*", help="names of scripts")
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--python", default=sys.executable, help="a Python with the packages of the scripts")
    parser.add_argument("--keep", help="a folder for what the scripts print and write")
    parser.add_argument("--list", choices=("forced", "apex"), default="forced")
    options = parser.parse_args()
    levels = options.levels.split(",") if options.list == "forced" else ["own level", "difference from O0"]
    scripts = {"forced": forced_list, "apex": apex_list}[options.list].SCRIPTS
    print("| script | family | passes | " + " | ".join(levels) + " | seconds |\n|" + "---|" * (4 + len(levels)))
    failed = 0
    for script in scripts:
        if options.only and script.name not in options.only:
            continue
        if not os.path.exists(os.path.join(options.folder, script.folder)):
            print(f"| {script.name} | {script.family} | not in the folder |", flush=True)
            continue
        failed += print_row(script, levels, options)
    return 1 if failed else 0


def print_row(script, levels, options):
    """Run a script unchanged and at levels; print its row and return whether something failed."""
    start = time.time()
    unchanged = run(script, None, options)
    if unchanged["failure"]:
        cells = [unchanged["failure"]]
    elif script.level:
        cells = [own_level(script, unchanged), judged(run(script, "O0", options), unchanged)]
    else:
        cells = [judged(unchanged, run(script, each, options)) for each in levels]
    row = [script.name, script.family, str(len(unchanged["losses"]))] + cells + [f"{time.time() - start:.0f}"]
    print("| " + " | ".join(row) + " |", flush=True)
    return any("FAILED" in each for each in cells)


def run(script, level, options):
    """Run a script once and return its record: losses, a digest of the weights, the level in force, the failure."""
    with tempfile.TemporaryDirectory() as temporary:
        root = os.path.abspath(options.keep or temporary)
        folder = os.path.join(root, script.name, level or "unchanged")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(os.path.join(options.folder, script.folder), folder)
        for call in script.setup:
            prepare(call, folder)
        record = os.path.join(folder, "record.json")
        with open(os.path.join(folder, "output.txt"), "w") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            variables = environment(script, record, options)
            started = command(script, level, options.python)
            done = subprocess.run(started, cwd=folder, env=variables, timeout=900, **streams)
        found = {"losses": [], "digest": None, "level": None}
        if os.path.exists(record):
            with open(record) as file:
                found = json.load(file)
        with open(os.path.join(folder, "output.txt"), errors="replace") as file:
            found["output"] = file.read()
        found["failure"] = failure(done.returncode, found, level)
        return found


def prepare(call, folder):
    """Call a function of ``data`` as written in the list, such as ``text()``, with the folder as its first argument."""
    name, arguments = call.split("(", 1)
    eval(
        f"function(folder, {arguments}",
        {"function": getattr(data, name), "folder": folder, **vars(forced_list), **vars(apex_list)},
    )


def command(script, level, python):
    """Return the command line as a list."""
    ampcompat = ["-m", "ampcompat", "run"]
    if level is not None:
        ampcompat += ["--opt-level", level]
    if script.written_for_cuda:
        ampcompat += ["--device", "cpu"]
    started = [python] + (ampcompat if len(ampcompat) > 3 else [])
    path = script.path.split()
    return started + script.launcher.split() + path + shlex.split(script.arguments)


def environment(script, record, options):
    """Return the environment variables of a run."""
    path = [DATA, os.path.join(DATA, "stubs"), os.path.dirname(HERE)] + os.environ.get("PYTHONPATH", "").split(
        os.pathsep
    )
    own = {
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
        "SCRIPT_RECORD": record,
        "SCRIPT_STEPS": str(script.steps),
        "SCRIPT_SMALL": script.small,
    }
    own.update(SCRIPT_LACKS=script.lacks, SCRIPT_SILENT=script.silent)
    own.update(SCRIPT_IMAGES=str(script.images), PYTHONPATH=os.pathsep.join(filter(None, path)))
    return dict(os.environ, OMP_NUM_THREADS="1", PYTHONHASHSEED="0", PYTHONUNBUFFERED="1", **own)


def failure(code, found, level):
    """Return a sentence if a run failed, else None."""
    if code:
        lines = [line for line in found["output"].splitlines() if line.strip()]
        said = [line for line in lines if "Error" in line or line.startswith("ampcompat")] or lines
        return f"FAILED ({code}) {said[-1].strip()[:160] if said else ''}"
    if not found["losses"]:
        return "FAILED: no backward pass"
    if level is not None and found["level"] != level:
        return f"FAILED: the level was not in force ({found['level']})"
    return None


def judged(unchanged, found):
    """Return the cell of one level."""
    for each in (unchanged, found):
        if each["failure"]:
            return each["failure"]
    if found["losses"] == unchanged["losses"] and found["digest"] == unchanged["digest"]:
        return "equal"
    if not all(map(math.isfinite, found["losses"])):
        finite = sum(map(math.isfinite, found["losses"]))
        return f"{finite} of {len(found['losses'])} losses finite"
    if len(found["losses"]) != len(unchanged["losses"]):
        return f"{len(found['losses'])} passes, not {len(unchanged['losses'])}"
    return f"{100 * difference(unchanged['losses'], found['losses']):.2g} %"


def own_level(script, found):
    """Return the cell of a script with Apex."""
    if found["level"] != script.level:
        return f"FAILED: the level in force was {found['level']}, not {script.level}"
    if not all(map(math.isfinite, found["losses"])):
        return "FAILED: losses that are not finite"
    count = max(1, len(found["losses"]) // 4)
    first, last = (sum(part) / count for part in (found["losses"][:count], found["losses"][-count:]))
    return f"{script.level}: {first:.3g} → {last:.3g}"


def difference(losses, others):
    """Return the relative difference of the means of the last quarters."""
    last = max(1, len(losses) // 4)
    mean, other = (sum(each[-last:]) / last for each in (losses, others))
    overall = sum(losses) / len(losses)
    spread = math.sqrt(sum((each - overall) ** 2 for each in losses) / len(losses))
    return abs(other - mean) / max(abs(mean), spread, 1e-12)


if __name__ == "__main__":
    sys.exit(main())
