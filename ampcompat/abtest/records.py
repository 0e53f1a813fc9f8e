"""What an A/B run found, as plain records, and their JSON form.

Owns: ``Report``, ``Run``, ``Memory``, ``Finding``; the JSON schema and its version.
Must not touch: torch, scripts, terminals. A report can be read where no torch is installed.
The surprise: JSON has no nan and no inf, so a loss that is not finite is written as the string "nan", "inf" or "-inf".

The JSON form, schema 1. Bytes are whole numbers, seconds are floats, steps count from 0, and null means not measured:

    {"schema": 1,
     "environment": {"ampcompat": "0.1.0", "torch": …, "python": …, "device": …, "platform": …, "script": …, "seed": …},
     "baseline": "O0",
     "advice": "…",                               which level to take, and why not the others; one line each
     "runs": {"O1": {
        "status": "ok",                           ok, stopped (by --steps), failed, interrupted
        "error": null,                            of a failed run: its last line, and "traceback" the whole
        "traceback": null,
        "backend": "native",                      who cast functions, or null
        "loss": [[step, loss_id, value], …],      unscaled, one per scale_loss
        "scale": [[step, loss_id, value], …],     the scale that this loss was multiplied by
        "skipped": [step, …],
        "step_seconds": [seconds, …],             from the end of one step to the end of the next, warm-up included
        "samples": [count, …],                    per step, or null where no batch size could be told
        "memory": {"parameters": bytes, "gradients": …, "masters": …, "optimizer": …, "activations": …, "buffers": …,
                   "peak_total": …, "cuda_allocated": …, "cuda_reserved": …, "fragmentation": share from 0 to 1},
        "measured": [step, …],                    those in which memory was measured, which makes them slow
        "predicted": {"parameters": bytes, …},    the formula's answer for the same kinds, or null
        "memory_notes": ["…", …],                 why the two differ
        "findings": [{"step": step, "text": "…"}, …],   what the forensics said of skipped steps
        "repeats": [run, …],                      the same level again with other seeds, as runs without repeats
        "verdict": "…"}}}

Readers accept a newer minor form of the same schema: keys that they do not know are left out.
"""

import json
import math
from dataclasses import asdict, dataclass, field, fields
from typing import Dict, List, Optional, Tuple

from ..errors import AmpValueError

SCHEMA = 1

#: The kinds of memory in the order in which they are stacked and listed.
KINDS = ("parameters", "gradients", "masters", "optimizer", "activations", "buffers")

#: How a run can end.
STATUSES = ("ok", "stopped", "failed", "interrupted")


@dataclass
class Memory:
    """Bytes by kind at the peak of a step; None is not measured."""

    parameters: Optional[int] = None
    gradients: Optional[int] = None
    masters: Optional[int] = None
    optimizer: Optional[int] = None
    activations: Optional[int] = None
    buffers: Optional[int] = None
    peak_total: Optional[int] = None
    cuda_allocated: Optional[int] = None
    cuda_reserved: Optional[int] = None
    fragmentation: Optional[float] = None


@dataclass
class Finding:
    """What the forensics said of a skipped step."""

    step: int
    text: str


@dataclass
class Run:
    """One level of a script, trained once; ``repeats`` are further runs of it with other seeds."""

    status: str = "ok"
    error: Optional[str] = None
    traceback: Optional[str] = None
    backend: Optional[str] = None
    loss: List[Tuple[int, int, float]] = field(default_factory=list)
    scale: List[Tuple[int, int, float]] = field(default_factory=list)
    skipped: List[int] = field(default_factory=list)
    step_seconds: List[float] = field(default_factory=list)
    samples: Optional[List[int]] = None
    memory: Memory = field(default_factory=Memory)
    measured: List[int] = field(default_factory=list)
    predicted: Optional[Memory] = None
    memory_notes: List[str] = field(default_factory=list)
    findings: List[Finding] = field(default_factory=list)
    repeats: List["Run"] = field(default_factory=list)
    verdict: str = ""

    def losses(self, loss_id=0):
        """Return ``{step: value}`` of one loss; of several passes in one step (accumulation) the mean."""
        passes = {}
        for step, number, value in self.loss:
            if number == loss_id:
                passes.setdefault(step, []).append(value)
        return {step: sum(values) / len(values) for step, values in passes.items()}


@dataclass
class Report:
    """Runs of one script by level, beside the level that they are compared with."""

    environment: Dict[str, object] = field(default_factory=dict)
    baseline: str = "O0"
    runs: Dict[str, Run] = field(default_factory=dict)
    advice: str = ""

    def keep(self, level, repeat, run):
        """Put the ``repeat``-th run of a level where it belongs."""
        if repeat:
            self.runs[level].repeats.append(run)
        else:
            self.runs[level] = run

    def run_of(self, level, repeat):
        """Return the ``repeat``-th run of a level."""
        return ([self.runs[level]] + self.runs[level].repeats)[repeat]

    def table(self, width=100):
        """Return the report as lines of text for a terminal of so many columns."""
        from .table import render

        return render(self, width)

    def to_html(self):
        """Return the report as one self-contained page; needs the extra ``report``."""
        from .page import to_html

        return to_html(self)

    def plot(self, path):
        """Draw the report's charts into a file, whose ending says the format; needs the extra ``report``."""
        from .figures import save

        save(self, path)

    def to_json(self):
        """Return the report as JSON text of schema 1."""
        tree = dict(asdict(self), schema=SCHEMA)
        return json.dumps(_spelled(tree), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text):
        """Return the ``Report`` that ``to_json`` wrote.

        Raises:
            AmpValueError: no JSON, no report, a damaged one, or one of another schema.
        """
        try:
            tree = json.loads(text)
        except ValueError as error:
            raise AmpValueError("This is no JSON: {}.".format(error)) from None
        if not isinstance(tree, dict) or "schema" not in tree or not isinstance(tree.get("runs"), dict):
            raise AmpValueError("This JSON is no report of `ampcompat ab`: it has no \"schema\" and \"runs\".")
        if tree["schema"] != SCHEMA:
            raise AmpValueError(
                "This report has schema {!r}, and this ampcompat reads schema {}: use the version that wrote it.".format(
                    tree["schema"], SCHEMA
                )
            )
        try:
            runs = {level: _run(run) for level, run in tree["runs"].items()}
            known = dict(_known(cls, tree), environment=dict(tree.get("environment") or {}), runs=runs)
            _check_texts(known, ("baseline", "advice"))
        except (AttributeError, TypeError, ValueError) as error:
            raise AmpValueError("This report is damaged, {}; write it again with `ampcompat ab`.".format(error)) from None
        return cls(**known)


def _run(tree):
    known = _known(Run, tree)
    _check_texts(known, ("error", "traceback", "backend", "verdict"))
    if known.get("status", "ok") not in STATUSES:
        raise ValueError("its status {!r} is none of {}".format(known["status"], ", ".join(STATUSES)))
    for name in ("loss", "scale"):
        known[name] = [(_whole(step), _whole(loss), float(value)) for step, loss, value in known.get(name) or ()]
    known["skipped"] = [_whole(step) for step in known.get("skipped") or ()]
    known["step_seconds"] = [float(seconds) for seconds in known.get("step_seconds") or ()]
    if known.get("samples") is not None:
        known["samples"] = [_whole(count) for count in known["samples"]]
    known["memory"] = _memory(known.get("memory") or {})
    if known.get("predicted") is not None:
        known["predicted"] = _memory(known["predicted"])
    known["findings"] = [Finding(**_known(Finding, finding)) for finding in known.get("findings") or ()]
    known["repeats"] = [_run(repeat) for repeat in known.get("repeats") or ()]
    return Run(**known)


def _memory(tree):
    known = _known(Memory, tree)
    for name, value in known.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError("its memory has {!r} for {}".format(value, name))
    return Memory(**known)


def _whole(value):
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("it has {!r} where a whole number belongs".format(value))
    return value


def _check_texts(known, names):
    for name in names:
        if not isinstance(known.get(name), (str, type(None))):
            raise ValueError("its {} is {!r} and no text".format(name, known[name]))


def _known(record, tree):
    if not isinstance(tree, dict):
        raise TypeError("it has {!r} where a {} belongs".format(tree, record.__name__))
    return {each.name: tree[each.name] for each in fields(record) if each.name in tree}


def _spelled(value):
    """Spell out what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: _spelled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spelled(item) for item in value]
    return value
