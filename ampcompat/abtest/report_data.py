"""The results of an A/B run as dataclasses, and their JSON form.

The descriptions of the fields are used to check what is read, and for the tables of docs/report_format.md
(``documentation()``).
"""

import functools
import gzip
import json
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from ..errors import AmpError, AmpValueError
from ..support import files
from . import first_difference_data, packed_numbers, schema
from .first_difference_data import OpDifference, StepComparison
from .outcomes import Equivalence, Speed
from .packed_numbers import Numbers, Rows
from .schema import COUNT, LOSSES, NAMED_ERRORS, TEXT, described, list_of, map_of, optional

SCHEMA = 2

#: The kinds of memory in the order in which they are stacked and listed.
KINDS = ("parameters", "gradients", "masters", "optimizer", "activations", "buffers")

#: How a run can end.
STATUSES = ("ok", "stopped", "failed", "interrupted")


#: The error of a run that is missing in a report that has a later repeat of the same level.
NOT_RUN = "it was not run"

#: The errors of runs in which there was nothing to record; a series ends after the first such run.
NEVER_INITIALIZED = (
    "amp.initialize was never called in this process: there was nothing to record. Training in processes that the "
    "script starts by itself is not recorded"
)
DISABLED = "amp.initialize was called with enabled=False, so that every level is the same training without amp"
NOTHING_TO_RECORD = (NEVER_INITIALIZED, DISABLED)


def label_of(level, repeat):
    """Return the name of the ``repeat``-th run of a level."""
    return level if repeat == 0 else f"{level} seed {repeat + 1}"


def planned_runs(levels, baseline, repeats=1, control=True):
    """Return the runs of a series as ``[(level, repeat), …]``: the levels take turns; the control comes last.

    Args:
        levels: the levels in order; the baseline comes first if it is not among them.
        repeats: runs per level, each with a different seed.
        control: whether the baseline has at least two seeds.
    """
    levels = list(levels) if baseline in levels else [baseline] + list(levels)
    counts = dict.fromkeys(levels, repeats)
    counts[baseline] = max(repeats, 2 if control else 1)
    return [(level, repeat) for repeat in range(max(counts.values())) for level in levels if repeat < counts[level]]


def _bytes(says):
    return described(optional(schema.BYTES), says, None)


@dataclass
class Memory:
    """Bytes by kind at the peak of a step; null means not measured."""

    parameters: Optional[int] = _bytes("weights, in the model's dtypes")
    gradients: Optional[int] = _bytes("gradients of weights and masters")
    masters: Optional[int] = _bytes("float32 master weights")
    optimizer: Optional[int] = _bytes("state of the optimizers")
    activations: Optional[int] = _bytes("tensors that the forward pass saves for the backward pass")
    buffers: Optional[int] = _bytes("model buffers, half copies of weights and temporary tensors, together")
    peak_total: Optional[int] = _bytes("the peak of their sum")
    cuda_allocated: Optional[int] = _bytes("the peak of what torch's allocator had allocated")
    cuda_reserved: Optional[int] = _bytes("the peak of what it had reserved")
    fragmentation: Optional[float] = described(optional(schema.SHARE), "the share of it that was not allocated", None)


@dataclass
class Finding:
    """What the diagnosis reports for a step: why it was skipped, or that a value has grown."""

    step: int = described(COUNT, "its number, from 0", 0)
    text: str = described(TEXT, "what happened, and what to try", "")


_SPEED, _EQUIVALENCE = schema.record(Speed), schema.record(Equivalence)


@dataclass
class Run:
    """One level of a script, trained once. Long series are stored in arrays, whatever sequence type is passed."""

    status: str = described(schema.choice(STATUSES), "how it ended; stopped means by `--steps`", "ok")
    error: Optional[str] = described(optional(TEXT), "the error of a failed run, in one line", None)
    traceback: Optional[str] = described(optional(TEXT), "the whole traceback", None)
    backend: Optional[str] = described(optional(TEXT), "the cast backend", None)
    loss: List[Tuple[int, int, float]] = described(LOSSES, "the unscaled losses, one per `scale_loss`", factory=list)
    scale: List[Tuple[int, int, float]] = described(LOSSES, "the loss scale of each of these losses", factory=list)
    skipped: List[int] = described(list_of(COUNT), "steps that were skipped", factory=list)
    step_seconds: List[float] = described(
        schema.SECONDS, "from the end of a step to the end of the next", factory=list, key="step_microseconds"
    )
    samples: Optional[List[int]] = described(
        optional(schema.SAMPLES), "per step; null if batch sizes are unknown", None
    )
    memory: Memory = described(schema.record(Memory), "as measured", factory=Memory)
    measured: List[int] = described(list_of(COUNT), "steps in which memory was measured, which is slow", factory=list)
    watched: List[int] = described(schema.STEPS, "steps with hooks for overflows, as in a Series", factory=list)
    metrics: Dict[str, List[Tuple[int, float]]] = described(
        map_of(schema.METRIC), "what the script logged", factory=dict
    )
    loaded: List[int] = described(
        list_of(COUNT),
        "checksums of what data loaders returned in each of the first 30 steps, 0: nothing",
        factory=list,
    )
    inputs: List[int] = described(
        list_of(COUNT), "checksums of what models were called with in each of them", factory=list
    )
    layers: List[Tuple[str, float]] = described(
        NAMED_ERRORS, "the error of each layer's output compared with float32, of `--find-keep-fp32`", factory=list
    )
    predicted: Optional[Memory] = described(optional(schema.record(Memory)), "memory predicted by the formula", None)
    memory_notes: List[str] = described(list_of(TEXT), "why the two differ", factory=list)
    findings: List[Finding] = described(list_of(schema.record(Finding)), "why steps were skipped", factory=list)
    warnings: List[Finding] = described(
        list_of(schema.record(Finding)), "values that grew towards the largest of their dtype", factory=list
    )
    checkpoints: List[str] = described(
        list_of(TEXT), "files that `torch.save` wrote after the first step", factory=list
    )
    identity: Dict[str, object] = described(
        map_of(schema.ANY), "the values that must be equal for `ab --resume` to keep the run", factory=dict
    )
    timings: Optional[List["Run"]] = described(
        optional(list_of(schema.late("Run", lambda: _RUN))),
        "short runs, one per round, whose times are used; null: the times of the run itself",
        None,
    )
    speed: Optional["Speed"] = described(
        optional(schema.late("Speed", lambda: _SPEED)), "how fast a step is, as a multiple of the baseline's", None
    )
    equivalence: Optional["Equivalence"] = described(
        optional(schema.late("Equivalence", lambda: _EQUIVALENCE)),
        "of all rows except the baseline, with `--tolerance`",
        None,
    )
    repeats: List["Run"] = described(
        list_of(schema.late("Run", lambda: _RUN)), "further runs with other seeds, which have no repeats", factory=list
    )
    verdict: str = described(TEXT, "how the level compares with the baseline, in one sentence", "")

    def __setattr__(self, name, value):
        """Keep long series in arrays."""
        object.__setattr__(self, name, _ARRAYS[name](value) if name in _ARRAYS and value is not None else value)

    def losses(self, loss_id=0):
        """Return ``{step: value}`` of one loss; the mean if a step has several passes (gradient accumulation)."""
        return dict(zip(*self.loss.by_step(loss_id)))

    def loss_ids(self):
        """Return the set of the numbers of the losses."""
        return set(self.loss.columns[1])

    def problem(self):
        """Return the error in the values as a whole, or None."""
        if self.samples is not None and len(self.samples) != len(self.step_seconds):
            return f"has samples of {len(self.samples)} steps and times of {len(self.step_seconds)}"
        return "has repeats of repeats" if any(each.repeats for each in self.repeats) else None


#: How series that a ``Run`` keeps in arrays are converted from other sequences.
_ARRAYS = {
    "loss": functools.partial(Rows.of, "iid"),
    "scale": functools.partial(Rows.of, "iid"),
    "step_seconds": functools.partial(Numbers.of, "d"),
    "samples": functools.partial(Numbers.of, "i"),
    "watched": functools.partial(Numbers.of, "i"),
}
_RUN = schema.record(Run)


@dataclass
class Report:
    """The runs of one script by level, and the level that the others are compared with."""

    environment: Dict[str, object] = described(map_of(schema.ANY), "versions, device, script, seed, …", factory=dict)
    baseline: str = described(TEXT, "the level that the others are compared with", "O0")
    runs: Dict[str, Run] = described(map_of(_RUN), "the levels", factory=dict)
    advice: str = described(TEXT, "which level is recommended, and remarks on the measurement; one line each", "")
    first_difference: Optional[OpDifference] = described(
        optional(first_difference_data.DIFFERENCE),
        "the first operation with an error that its dtype does not explain; null without one",
        None,
    )
    step_comparison: Optional[StepComparison] = described(
        optional(first_difference_data.COMPARISON), "what `--first-difference` compared", None
    )

    def add(self, level, repeat, run):
        """Put the ``repeat``-th run of a level in its place; missing earlier runs count as interrupted."""
        runs = [self.runs[level]] + self.runs[level].repeats if level in self.runs else []
        runs += [Run(status="interrupted", error=NOT_RUN) for _ in range(len(runs), repeat + 1)]
        runs[repeat] = run
        runs[0].repeats = runs[1:]
        self.runs[level] = runs[0]

    def run_of(self, level, repeat):
        """Return the ``repeat``-th run of a level."""
        return ([self.runs[level]] + self.runs[level].repeats)[repeat]

    def checkpoints(self):
        """Return the files that the runs saved after their first step, as ``{path: name of the run}``."""
        found = {}
        for level, run in list(self.runs.items()):  # a list: with --jobs other threads add runs meanwhile
            for repeat, each in enumerate([run] + run.repeats):
                found.update(dict.fromkeys(each.checkpoints, label_of(level, repeat)))
        return found

    def to_json(self):
        """Return the report as JSON text of schema 2."""
        tree = dict(_REPORT.write(self), schema=SCHEMA)
        return json.dumps(tree, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text, largest=files.LARGEST):
        """Return the ``Report`` that ``to_json`` wrote.

        Args:
            largest: bytes of the largest file. Packed lists may stand for a sixteenth of as many numbers, and there may
                be one run for 256 KiB: that many take 10 s.

        Raises:
            AmpValueError: the text is not JSON, not a report, or a report that is damaged or has another schema.
        """
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise AmpValueError(f"Expected a file of `ab --json`, but this is not JSON: {error}.") from None
        if not isinstance(tree, dict) or "schema" not in tree or not isinstance(tree.get("runs"), dict):
            raise AmpValueError('This JSON is not a report of `ampcompat ab`: it has no "schema" and "runs".')
        if tree["schema"] != SCHEMA:
            message = "This report has schema {!r}, but this ampcompat reads schema {}: use the version that wrote it."
            raise AmpValueError(message.format(tree["schema"], SCHEMA))
        runs = sum(1 + len(_repeats(run)) for run in tree["runs"].values())
        if packed_numbers.length(tree) > largest >> 4 or runs > largest >> 18:
            raise AmpValueError(f"This report has too many runs or steps for --max-size {largest >> 20}.")
        for run in tree["runs"].values():
            _upgrade(run)
        try:
            return _REPORT.read(tree, "")
        except (ValueError, OverflowError, RecursionError) as error:
            message = "This report is damaged: {}; write it again with `ampcompat ab`."
            raise AmpValueError(message.format(error)) from None

    def save(self, path):
        """Write the report to a file, completely or not at all; compressed if its name ends in ".gz"."""
        text = self.to_json()
        files.write(path, gzip.compress(text.encode("utf-8"), 6) if str(path).endswith(".gz") else text)

    @classmethod
    def load(cls, path, largest=files.LARGEST):
        """Return the ``Report`` that ``save`` wrote.

        Args:
            largest: bytes of the largest file that is read, decompressed.

        Raises:
            AmpValueError: as for ``from_json``; or the file cannot be read.
        """
        try:
            text = files.read(path, largest).decode("utf-8")
        except UnicodeDecodeError:
            raise AmpValueError(f"cannot read {path}: it is not UTF-8 text.") from None
        except AmpError as error:
            raise AmpValueError(str(error)) from None
        try:
            return cls.from_json(text, largest)
        except AmpValueError as error:
            raise AmpValueError(f"{path}: {error}") from None


_REPORT = schema.record(Report)


def _repeats(tree):
    """Return the repeats of a run as JSON; [] if it is damaged."""
    repeats = tree.get("repeats") if isinstance(tree, dict) else None
    return repeats if isinstance(repeats, list) else []


def _upgrade(tree):
    """Give a run of version 0.2, as JSON, the current names: ``timing`` was one run, an empty one if not timed."""
    if isinstance(tree, dict) and tree.get("timing") is not None and "timings" not in tree:
        timing = tree["timing"]
        is_empty = isinstance(timing, dict) and not timing.get("step_microseconds")
        tree["timings"] = [] if is_empty else [timing]


def documentation():
    """Return the description of the format as Markdown."""
    return schema.documentation(
        (Report, Run, Speed, Equivalence, schema.Series, Memory, Finding, OpDifference, StepComparison)
    )
