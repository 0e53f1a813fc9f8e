"""Run legs, which are sessions of noxfile.py, one after the other: .ci/run calls this with a Python that has nox.

The leg "drawn" is one of the other releases of torch, chosen by the hash of the commit. It is printed, and
`.ci/run torch-X` runs it again. The leg "newest", torch without a pinned version, warns where its tests fail.

The suite is run whole with the oldest torch, by the leg main and with the newest. With the releases between them that
CI runs, so with the one that is drawn too, it is run without tests/same_with_every_torch.txt; `nox -s LEG` runs all.

While the tests of a leg run, the packages of those after it are installed. A leg whose tests fail fails the run. One
whose interpreter is absent, whose packages cannot be fetched (after three attempts) or for which the disk is too small
is said to be NOT RUN. The last line is pytest's own summary of the main leg.
"""

import collections
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures

import every_torch

#: What is printed where the network or the disk is the reason; pip may be held to other versions, too.
UNREACHABLE = re.compile(
    r"Retrying|[Cc]onnection|timed out|IncompleteRead|No matching distribution|HTTP error|SSLError|"
    r"No space left|The user requested \(constraint\)"
)
PAUSES = (5, 20, None)  # seconds between attempts to install
RELEASES = [("torch-" + release, leg, int(gb)) for release, _, leg, gb, *_ in every_torch.rows()]
OTHERS = [name for name, leg, _ in RELEASES if leg == "other"]
IN_PART = [name for name, leg, _ in RELEASES[1:-1] if leg in ("CI", "other")]
NEEDED_GB = dict({name: gb for name, _, gb in RELEASES}, **{"second-device": 15})


def nox(*arguments):
    """Return the command line of nox."""
    return [str(pathlib.Path(sys.executable).with_name("nox")), "--nocolor", *arguments]


def output(*command):
    """Return what a command prints."""
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()


def chosen(names):
    """Return the legs that were asked for, or those of CI: main, releases of torch, the drawn one, and the others."""
    known = dict(re.findall(r"^[*-] (\S+)( \[ci\])? -> ", output(*nox("--list")), re.MULTILINE))
    by_default = [name for name, tag in known.items() if tag and name != "main"]
    releases = [name for name in by_default if name.startswith("torch-")]
    names = names or ["main", *releases, "drawn", *(name for name in by_default if name not in releases)]
    if "drawn" in names:
        commit = output("git", "rev-parse", "HEAD")
        drawn = OTHERS[int(commit[:7], 16) % len(OTHERS)]
        names = [drawn if name == "drawn" else name for name in names]
        print(f"leg drawn by commit {commit[:10]}: {drawn} (.ci/run {drawn} runs it again)", flush=True)
    for name in names:
        if name not in known:
            print(f"unknown leg: {name} (there are: {' '.join(known)})", file=sys.stderr)
            raise SystemExit(2)
    return names


class Run:
    """A run of legs in a folder for their environments: what it has started, and what came of them."""

    def __init__(self, names, root):
        self.root, self.turns = pathlib.Path(root), {name: threading.Event() for name in names}
        self.temporary = {name: self.root / f"t{number}" for number, name in enumerate(names)}  # short, to be printed
        self.processes, self.is_over = set(), threading.Event()
        self.failed, self.not_run, self.warned, self.summary = [], [], [], "not asked for"

    def call(self, leg, *arguments, shows=False):
        """Call nox for a leg, perhaps printing its lines as they come; return (exit code, lines)."""
        if self.is_over.is_set():
            return 1, []
        limit = [sys.executable, str(every_torch.TIME_LIMIT), "240" if leg == "main" else "40"]
        command = nox("--no-error-on-missing-interpreters", "--envdir", str(self.root / leg), "-s", leg, *arguments)
        temporary = self.temporary[leg]  # so no leg meets another's files, such as what torch.compile caches
        temporary.mkdir(exist_ok=True)
        piped, lines = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}, []
        piped["env"] = dict(os.environ, TMPDIR=str(temporary))
        with subprocess.Popen(limit + command, encoding="utf-8", errors="replace", **piped) as process:
            self.processes.add(process)
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if shows and not line.startswith("nox > "):
                    print(line, end="", flush=True)
        self.processes.discard(process)
        return process.returncode, lines

    def prepare(self, leg):
        """Make the environment of a leg; return (what prevents its tests or "", the lines of the installation)."""
        needed = NEEDED_GB.get(leg, 0)
        free = lambda: shutil.disk_usage(str(self.root)).free // 2**30  # noqa: E731
        while free() < needed and not (self.turns[leg].wait(1) or self.is_over.is_set()):
            pass  # when it is its turn, the environments of the legs before it are gone
        if free() < needed:
            return f"it needs {needed} GB of free disk, and {self.root} has {free()} GB (TMPDIR moves it)", []
        for pause in PAUSES:
            code, lines = self.call(leg, "-r", "--install-only")
            text = "\n".join(lines)
            if not (code and UNREACHABLE.search(text)):
                skipped = re.search(r"^nox > Session .* skipped: (.*?)( \(took [^)]*\))?$", text, re.MULTILINE)
                return skipped.group(1) if skipped else "the installation is broken" if code else "", lines
            if pause is None or self.is_over.wait(pause):
                return "its packages cannot be fetched", lines

    def test(self, leg):
        """Run the tests of a leg; print all of main, of others a line, the reasons for skips, and failures."""
        part = ["--", "--torch-dependent"] if leg in IN_PART else []
        code, lines = self.call(leg, "-R", *part, shows=leg == "main")
        lines = [line for line in lines if not line.startswith("nox > ")]
        text = "\n".join(lines)
        versions = re.search("^torch .* / python .*", text, re.MULTILINE)
        summary = lines[-1].strip("= ") if versions else "good"
        self.not_run += re.findall(r"^\*+ leg (python-[\d.]+) was NOT RUN", text, re.MULTILINE)
        if leg == "main":
            self.summary = summary
        shown = [line for line in lines if re.match(r"(leg|\*+ leg) python", line)]
        shown += failures(lines) if code and leg != "main" else []
        shown.append(f"leg {versions.group() if versions else leg}: {summary}")
        skips = collections.Counter()
        for count, reason in re.findall(r"^SKIPPED \[(\d+)\] (?:\S+: )?(.*)$", text, re.MULTILINE):
            skips[reason] += int(count)
        print("\n".join(shown + [f"{count:6}  {reason}" for reason, count in skips.most_common()]))
        if code:
            self.fail(leg, summary)

    def fail(self, leg, reason):
        """Note that a leg has failed."""
        (self.warned if leg == "newest" else self.failed).append(leg)
        said = f"leg {leg} FAILED: {reason}"
        print(f"******** WARNING: {said} ********" if leg == "newest" else said)

    def finish(self, leg, problem, lines):
        """Run the tests of a leg if nothing prevents them, and remove its environment."""
        if not problem:
            self.test(leg)
        elif problem.startswith("covered: "):
            print(f"leg {leg}: {problem[len('covered: ') :]}")
        else:
            print("\n".join(lines[-20:]))
            if problem == "the installation is broken":
                self.fail(leg, problem)
            else:
                self.not_run.append(leg)
                print(f"******** leg {leg} was NOT RUN: {problem} ********")
                if leg == "main":
                    self.fail(leg, "it cannot be left out")
        for folder in (self.root / leg, self.temporary[leg]):
            shutil.rmtree(str(folder), ignore_errors=True)

    def run(self):
        """Run all legs; return 1 if one has failed. What it has started ends with it."""
        installer = futures.ThreadPoolExecutor(1)
        try:
            prepared = {leg: installer.submit(self.prepare, leg) for leg in self.turns}
            for leg, turn in self.turns.items():
                print(f"== leg {leg}", flush=True)
                started = time.monotonic()
                turn.set()
                self.finish(leg, *prepared[leg].result())
                print(f"leg {leg} took {time.monotonic() - started:.0f} s", flush=True)
        finally:
            self.is_over.set()
            for process in list(self.processes):
                process.terminate()
            installer.shutdown()
        if self.warned:
            print(f"******** WARNING: failed with the newest torch: {' '.join(self.warned)} ********")
        told = (" ".join(names) or "none" for names in (self.failed, self.not_run))
        print("failed: {}; NOT RUN: {}; main: {}".format(*told, self.summary))
        return 1 if self.failed else 0


def failures(lines):
    """Return what failed, without the reasons for skips; all of the end where pytest did not get to its summary."""
    pattern = r"^=+ (FAILURES|ERRORS) =+$.*?^=+ short test summary"
    report = re.search(pattern, "\n".join(lines), re.MULTILINE | re.DOTALL)
    shown = report.group().splitlines()[:600] if report else []
    names = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return shown + names if shown or names else lines[-200:]


def main(root, *names):
    """Run the legs that were asked for, in a folder that is removed in the end; return the exit code."""
    try:
        return Run(chosen(list(names)), root).run()
    finally:
        shutil.rmtree(root, ignore_errors=True)  # a process that compiles may still write to it


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(*sys.argv[1:]))
