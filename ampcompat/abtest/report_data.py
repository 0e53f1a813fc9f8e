"""The results of an A/B run as dataclasses; ``Report`` writes and reads them as JSON. The comments on
fields are the text of the page that .ci/report_format.py makes."""

import gzip
import json
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from ..errors import AmpError, AmpValueError
from ..support import files
from . import packed_numbers, schema
from .packed_numbers import Numbers, Rows
from .schema import LOSSES, METRICS, SAMPLES, SECONDS, STEPS, choice, optional, special

SCHEMA = 2

#: The kinds of memory in the order in which they are stacked and listed.
KINDS = ("parameters", "gradients", "masters", "optimizer", "activations", "buffers")

#: How a run can end.
STATUSES = ("ok", "stopped", "failed", "interrupted")


#: The error of a run that is missing in a report that has a later repeat of the same level.
NOT_RUN = "it was not run"

#: The errors of runs in which there was nothing to record; a series ends after the first such run.
OTHER_PROCESSES = "there was nothing to record. Training in processes that the script starts by itself is not recorded"
NEVER_INITIALIZED = f"amp.initialize was never called in this process: {OTHER_PROCESSES}"
NEVER_TRAINED = f"no backward pass ran in this process: {OTHER_PROCESSES}"
DISABLED = "amp.initialize was called with enabled=False, so that every level is the same training without amp"
NOTHING_TO_RECORD = (NEVER_INITIALIZED, NEVER_TRAINED, DISABLED)


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


@dataclass
class Memory:
    """Bytes by kind at the peak of a step; None means not measured."""

    parameters: Optional[int] = None  # weights, in the model's dtypes
    gradients: Optional[int] = None  # gradients of weights and masters
    masters: Optional[int] = None  # float32 master weights
    optimizer: Optional[int] = None  # state of the optimizers
    activations: Optional[int] = None  # tensors that the forward pass saves for the backward pass
    buffers: Optional[int] = None  # model buffers, half copies of weights and temporary tensors, together
    peak_total: Optional[int] = None  # the peak of their sum
    cuda_allocated: Optional[int] = None  # the peak of what torch's allocator had allocated
    cuda_reserved: Optional[int] = None  # the peak of what it had reserved
    fragmentation: Optional[float] = None  # the share of it that was not allocated


@dataclass
class Finding:
    """Why a step was skipped."""

    step: int = 0  # its number, from 0
    text: str = ""  # what happened, and what to try
    same_as: Optional[int] = None  # an earlier step that had the same cause, whose finding has the details


@dataclass
class Speed:
    """The speed as a multiple of the baseline's: above 1 is faster."""

    ratio: float = 1.0  # the baseline's median step time divided by this one's, over rounds
    interval: Optional[Tuple[float, float]] = None  # 95 %; null if there was a single round


@dataclass
class Equivalence:
    """Whether a row ends within the tolerance of the baseline."""

    result: str = special(choice("shown", "refuted", "not shown"), default="not shown")  # within the tolerance
    difference: Optional[float] = None  # of the end of the loss, or of the target's metric, as a share
    interval: Optional[Tuple[float, float]] = None  # of the difference, 95 %; null if unknown
    seeds: int = 1  # the number of seeds used
    seeds_needed: Optional[int] = None  # the number that would show it; null if it is refuted or no number would


@dataclass
class Run:
    """One level of a script, trained once. Long series are stored in arrays, whatever sequence type is passed."""

    status: str = special(choice(*STATUSES), default="ok")  # how it ended; stopped means by `--steps`
    error: Optional[str] = None  # the error of a failed run, in one line
    traceback: Optional[str] = None  # the whole traceback
    backend: Optional[str] = None  # the cast backend
    #: the unscaled losses, one per `scale_loss`
    loss: List[Tuple[int, int, float]] = special(LOSSES, default_factory=list)
    #: the loss scale of each of these losses
    scale: List[Tuple[int, int, float]] = special(LOSSES, default_factory=list)
    skipped: List[int] = field(default_factory=list)  # steps that were skipped
    #: from the end of a step to the end of the next
    step_seconds: List[float] = special(SECONDS, "step_microseconds", default_factory=list)
    samples: Optional[List[int]] = special(optional(SAMPLES), default=None)  # per step; null if batch sizes are unknown
    memory: Memory = field(default_factory=Memory)  # as measured
    measured: List[int] = field(default_factory=list)  # steps in which memory was measured, which is slow
    watched: List[int] = special(STEPS, default_factory=list)  # steps with hooks for overflows, as in a Series
    metrics: Dict[str, List[Tuple[int, float]]] = special(METRICS, default_factory=dict)  # what the script logged
    #: checksums of what data loaders returned in each of the first 30 steps, 0: nothing
    loaded: List[int] = field(default_factory=list)
    inputs: List[int] = field(default_factory=list)  # checksums of what models were called with in each of them
    memory_notes: List[str] = field(default_factory=list)  # what was not measured, or not at the peak
    findings: List[Finding] = field(default_factory=list)  # why steps were skipped
    checkpoints: List[str] = field(default_factory=list)  # files that `torch.save` wrote after the first step
    #: the values that must be equal for `ab --resume` to keep the run
    identity: Dict[str, object] = field(default_factory=dict)
    #: short runs, one per round, whose times are used; null: the times of the run itself
    timings: Optional[List["Run"]] = None
    speed: Optional[Speed] = None  # how fast a step is, as a multiple of the baseline's
    equivalence: Optional[Equivalence] = None  # of all rows except the baseline, with `--tolerance`
    repeats: List["Run"] = field(default_factory=list)  # further runs with other seeds, which have no repeats
    verdict: str = ""  # how the level compares with the baseline, in one sentence

    def __setattr__(self, name, value):
        """Keep long series in arrays."""
        kind, types = _ARRAYS.get(name, (object, ""))
        is_kept = value is None or isinstance(value, kind)
        object.__setattr__(self, name, value if is_kept else kind(types, value))

    def losses(self, loss_id=0):
        """Return ``{step: value}`` of one loss; the mean if a step has several passes (gradient accumulation)."""
        return dict(zip(*self.loss.by_step(loss_id)))

    def loss_ids(self):
        """Return the set of the numbers of the losses."""
        return set(self.loss.columns[1])

    def is_consistent(self):
        """Return whether the values fit together."""
        has_all_samples = self.samples is None or len(self.samples) == len(self.step_seconds)
        return has_all_samples and not any(each.repeats for each in self.repeats)


#: The arrays in which a ``Run`` keeps long series, and the types of their numbers.
_ARRAYS = {
    "loss": (Rows, "iid"),
    "scale": (Rows, "iid"),
    "step_seconds": (Numbers, "d"),
    "samples": (Numbers, "i"),
    "watched": (Numbers, "i"),
}


@dataclass
class Report:
    """The runs of one script by level, and the level that the others are compared with."""

    environment: Dict[str, object] = field(default_factory=dict)  # versions, device, script, seed, …
    baseline: str = "O0"  # the level that the others are compared with
    runs: Dict[str, Run] = field(default_factory=dict)  # the levels
    advice: str = ""  # which level is recommended, and remarks on the measurement; one line each

    def add(self, level, repeat, run):
        """Put the ``repeat``-th run of a level in its place; missing earlier runs count as interrupted."""
        runs = [self.runs[level]] + self.runs[level].repeats if level in self.runs else []
        runs += [Run(status="interrupted", error=NOT_RUN) for _ in range(len(runs), repeat + 1)]
        runs[repeat] = run
        runs[0].repeats = runs[1:]
        self.runs[level] = runs[0]

    def run_of(self, level, repeat):
        """Return the ``repeat``-th run of a level, or None."""
        return next((run for name, number, run in self.every_run() if (name, number) == (level, repeat)), None)

    def every_run(self):
        """Yield (level, its number among the runs of the level, run) of every run."""
        for level, run in self.runs.items():
            for repeat, each in enumerate([run] + run.repeats):
                yield level, repeat, each

    def checkpoints(self):
        """Return the files that the runs saved after their first step, as ``{path: name of the run}``."""
        found = {}
        for level, repeat, run in self.every_run():
            found.update(dict.fromkeys(run.checkpoints, label_of(level, repeat)))
        return found

    def to_json(self):
        """Return the report as JSON text of schema 2."""
        tree = dict(schema.write(self), schema=SCHEMA)
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
            raise AmpValueError(f"This report has too many runs or steps for --max-size {files.in_mebibytes(largest)}.")
        try:
            return schema.read(cls, tree)
        except (ValueError, OverflowError, RecursionError) as error:
            message = "This report is damaged at {}: write it again with `ampcompat ab`."
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


def _repeats(tree):
    """Return the repeats of a run as JSON; [] if it is damaged."""
    repeats = tree.get("repeats") if isinstance(tree, dict) else None
    return repeats if isinstance(repeats, list) else []
