"""The results of an A/B run as dataclasses, and their JSON form.

The JSON form, schema 1. Bytes are whole numbers, seconds are floats, steps count from 0, and null means not measured.
JSON has no nan and no inf, so a loss that is not finite is written as the string "nan", "inf" or "-inf":

    {"schema": 1,
     "environment": {"ampcompat": "0.1.0", "torch": …, "python": …, "device": …, "platform": …, "script": …, "seed": …},
     "baseline": "O0",
     "advice": "…",                               which level to take, and remarks on the measurement; one line each
     "runs": {"O1": {
        "status": "ok",                           ok, stopped (by --steps), failed, interrupted
        "error": null,                            of a failed run: one line; "traceback" has all of it
        "traceback": null,
        "backend": "native",                      what cast functions, or null
        "loss": [[step, loss_id, value], …],      unscaled, one per scale_loss
        "scale": [[step, loss_id, value], …],     the scale that this loss was multiplied by
        "skipped": [step, …],
        "step_seconds": [seconds, …],             from the end of one step to the end of the next, warm-up included
        "samples": [count, …],                    per step, or null where batch sizes are unknown
        "memory": {"parameters": bytes, "gradients": …, "masters": …, "optimizer": …, "activations": …, "buffers": …,
                   "peak_total": …, "cuda_allocated": …, "cuda_reserved": …, "fragmentation": share from 0 to 1},
        "measured": [step, …],                    steps in which memory was measured, which makes them slow
        "watched": [step, …],                     steps in which overflows were diagnosed, which makes them slow
        "metrics": {"accuracy": [[step, value], …]},   what the script logged
        "layers": [["name", error], …],           of each layer's output, against float32; "gradients": of each param's
        "predicted": {"parameters": bytes, …},    the formula's result for the same kinds, or null
        "memory_notes": ["…", …],                 why the two differ
        "findings": [{"step": step, "text": "…"}, …],   why steps were skipped
        "repeats": [run, …],                      the same level with other seeds, as runs without repeats
        "verdict": "…"}}}                         how the level compares with the baseline, in one sentence

Keys that a reader does not know are ignored: later versions may add some without changing the schema number.
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


#: The errors of runs in which there was nothing to record: a series ends after the first of them.
NEVER_INITIALIZED = (
    "amp.initialize was never called in this process: there was nothing to record. Training in processes that the "
    "script starts by itself is not recorded"
)
DISABLED = "amp.initialize was called with enabled=False, so that every level is the same training without amp"
NOTHING_TO_RECORD = (NEVER_INITIALIZED, DISABLED)


def planned_runs(levels, baseline, repeats=1, control=True):
    """Return the runs of a series as ``[(level, repeat), …]``.

    Args:
        levels: the levels in their order; the baseline comes first where it is not among them.
        repeats: runs per level, each with other seeds.
        control: whether the baseline has at least two seeds.
    """
    levels = list(levels) if baseline in levels else [baseline] + list(levels)
    counts = dict.fromkeys(levels, repeats)
    counts[baseline] = max(repeats, 2 if control else 1)
    return [(level, repeat) for level in levels for repeat in range(counts[level])]


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
    """Why a step was skipped."""

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
    watched: List[int] = field(default_factory=list)
    metrics: Dict[str, List[Tuple[int, float]]] = field(default_factory=dict)
    layers: List[Tuple[str, float]] = field(default_factory=list)
    gradients: List[Tuple[str, float]] = field(default_factory=list)
    predicted: Optional[Memory] = None
    memory_notes: List[str] = field(default_factory=list)
    findings: List[Finding] = field(default_factory=list)
    repeats: List["Run"] = field(default_factory=list)
    verdict: str = ""

    def losses(self, loss_id=0):
        """Return ``{step: value}`` of one loss: the mean, where a step has several passes (gradient accumulation)."""
        passes = {}
        for step, number, value in self.loss:
            if number == loss_id:
                passes.setdefault(step, []).append(value)
        return {step: sum(values) / len(values) for step, values in passes.items()}


@dataclass
class Report:
    """The runs of one script by level, and the level that the others are compared with."""

    environment: Dict[str, object] = field(default_factory=dict)
    baseline: str = "O0"
    runs: Dict[str, Run] = field(default_factory=dict)
    advice: str = ""

    def add(self, level, repeat, run):
        """Add the ``repeat``-th run of a level."""
        if repeat:
            self.runs[level].repeats.append(run)
        else:
            self.runs[level] = run

    def run_of(self, level, repeat):
        """Return the ``repeat``-th run of a level."""
        return ([self.runs[level]] + self.runs[level].repeats)[repeat]

    def to_json(self):
        """Return the report as JSON text of schema 1."""
        tree = dict(asdict(self), schema=SCHEMA)
        return json.dumps(_without_special_floats(tree), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text):
        """Return the ``Report`` that ``to_json`` wrote.

        Raises:
            AmpValueError: the text is no JSON, no report, a damaged report, or one of another schema.
        """
        try:
            tree = json.loads(text)
        except ValueError as error:
            raise AmpValueError("This is not JSON: {}.".format(error)) from None
        if not isinstance(tree, dict) or "schema" not in tree or not isinstance(tree.get("runs"), dict):
            raise AmpValueError('This JSON is not a report of `ampcompat ab`: it has no "schema" and "runs".')
        if tree["schema"] != SCHEMA:
            message = "This report has schema {!r}, and this ampcompat reads schema {}: use the version that wrote it."
            raise AmpValueError(message.format(tree["schema"], SCHEMA))
        try:
            runs = {level: _run(run) for level, run in tree["runs"].items()}
            values = dict(_fields_of(cls, tree), environment=dict(tree.get("environment") or {}), runs=runs)
            _check_strings(values, ("baseline", "advice"))
        except (AttributeError, TypeError, ValueError) as error:
            message = "This report is damaged, {}; write it again with `ampcompat ab`."
            raise AmpValueError(message.format(error)) from None
        return cls(**values)


def _run(tree):
    values = _fields_of(Run, tree)
    _check_strings(values, ("error", "traceback", "backend", "verdict"))
    if values.get("status", "ok") not in STATUSES:
        raise ValueError("its status {!r} is none of {}".format(values["status"], ", ".join(STATUSES)))
    for name in ("loss", "scale"):
        values[name] = [(_integer(step), _integer(loss), float(value)) for step, loss, value in values.get(name) or ()]
    for name in ("skipped", "watched", "measured"):
        values[name] = [_integer(step) for step in values.get(name) or ()]
    for name in ("layers", "gradients"):
        values[name] = [(str(layer), float(error)) for layer, error in values.get(name) or ()]
    metrics = values.get("metrics") or {}
    values["metrics"] = {
        str(name): [(_integer(step), float(value)) for step, value in metrics[name]] for name in metrics
    }
    values["step_seconds"] = [float(seconds) for seconds in values.get("step_seconds") or ()]
    if values.get("samples") is not None:
        values["samples"] = [_integer(count) for count in values["samples"]]
    values["memory"] = _memory(values.get("memory") or {})
    if values.get("predicted") is not None:
        values["predicted"] = _memory(values["predicted"])
    values["findings"] = [Finding(**_fields_of(Finding, finding)) for finding in values.get("findings") or ()]
    values["repeats"] = [_run(repeat) for repeat in values.get("repeats") or ()]
    return Run(**values)


def _memory(tree):
    values = _fields_of(Memory, tree)
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError("its memory has {!r} for {}".format(value, name))
    return Memory(**values)


def _integer(value):
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("it has {!r} instead of a whole number".format(value))
    return value


def _check_strings(values, names):
    for name in names:
        if not isinstance(values.get(name), (str, type(None))):
            raise ValueError("its {} is {!r}, not a string".format(name, values[name]))


def _fields_of(record, tree):
    if not isinstance(tree, dict):
        raise TypeError("it has {!r} instead of a {}".format(tree, record.__name__))
    return {each.name: tree[each.name] for each in fields(record) if each.name in tree}


def _without_special_floats(value):
    """Replace nan and inf, which JSON does not have, by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: _without_special_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_special_floats(item) for item in value]
    return value
