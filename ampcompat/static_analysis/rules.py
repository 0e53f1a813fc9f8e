"""The rules of ``check``, of which ``migrate`` asks some, and the records of its report; the docs use the table."""

from typing import NamedTuple, Optional

SUPPORTED, IN_PART, REFUSED = "supported", "in part", "refused"
ERROR, WARNING, NOTE = "error", "warning", "note"


class SourcePlace(NamedTuple):
    """A line of a file; in a notebook, the line of a code cell."""

    path: str
    line: int
    cell: Optional[int] = None

    @property
    def order(self):
        """The key by which places are sorted: by file, cell and line."""
        return self.path, self.cell or 0, self.line

    def __str__(self):
        cell = "" if self.cell is None else f" cell {self.cell}"
        return f"{self.path}{cell}:{self.line}"


class Use(NamedTuple):
    """One use of a name of Apex.

    Attributes:
        place: where.
        name: the full name, such as ``apex.amp.initialize``.
        becomes: ``supported``, ``in part`` or ``refused``.
        advice: what differs, or what to use instead; empty if nothing differs.
        fallback: why a script can continue without it: ``try`` (ImportError is handled), ``function`` (only its callers
            need it), or empty.
    """

    place: SourcePlace
    name: str
    becomes: str
    advice: str
    fallback: str = ""


class RequestedLevel(NamedTuple):
    """An opt level that a script requests.

    Attributes:
        place: where.
        level: ``O0`` to ``O5``; ``?`` if it is known only at run time.
        source: where the value comes from, in words.
    """

    place: SourcePlace
    level: str
    source: str


class Problem(NamedTuple):
    """Something that will not work, or not as intended.

    Attributes:
        place: where.
        rule: the rule's name in ``RULES``.
        message: what was found, and what to do.
        severity: ``error``, ``warning`` or ``note``.
    """

    place: SourcePlace
    rule: str
    message: str
    severity: str


class Broken(NamedTuple):
    """A file that could not be read or parsed.

    Attributes:
        place: where.
        reason: why.
        mentions_apex: whether the word apex is in it.
    """

    place: SourcePlace
    reason: str
    mentions_apex: bool


class Rule(NamedTuple):
    """A rule: its severity, its title, and what to do."""

    severity: str
    title: str
    remedy: str


RULES = {
    "not-carried": Rule(ERROR, "a part of Apex that ampcompat does not have", "use what the message names"),
    "old-handle": Rule(
        ERROR,
        "scale_loss or wrap_optimizer of the handle that amp.init returns, Apex's API of 2018",
        "call amp.initialize, and amp.scale_loss in place of the handle's",
    ),
    "ddp-subclass": Rule(
        ERROR,
        "a method of a subclass of apex's DistributedDataParallel that would never be called, which is refused",
        "leave out the subclass; for other process groups give allreduce_communicators=([group], [None])",
    ),
    "half-before-initialize": Rule(
        ERROR, "a model cast with .half() before amp.initialize, which refuses it", "remove the call of .half()"
    ),
    "wrapped-before-initialize": Rule(
        ERROR,
        "a model wrapped for data parallelism before amp.initialize, which refuses it",
        "wrap it after initialize",
    ),
    "apex-folder": Rule(
        ERROR,
        "a folder named apex, which Python finds before ampcompat's apex if the script is next to it",
        "rename or remove it",
    ),
    "broken-file": Rule(
        ERROR, "a file that uses Apex and cannot be parsed as Python 3", "correct it; Python 2 code needs 2to3 first"
    ),
    "level-as-enabled": Rule(
        WARNING,
        "a level in the place of enabled, the third argument of amp.initialize: the level is O1",
        "write opt_level=",
    ),
    "clip-before-unscale": Rule(
        WARNING,
        "gradients clipped inside the scale_loss block, where they are still scaled",
        "clip after the block",
    ),
    "clip-model-params": Rule(
        WARNING,
        "model.parameters() clipped where amp has master weights: at O2 and O5 the gradients are the masters'",
        "clip amp.master_params(optimizer)",
    ),
    "plain-backward": Rule(
        WARNING,
        "backward() without amp.scale_loss: small float16 gradients of this pass become zero",
        "put it into `with amp.scale_loss(loss, optimizer) as scaled_loss`",
    ),
    "half-binary-cross-entropy": Rule(
        WARNING,
        "binary_cross_entropy, which O1 refuses for float16 inputs",
        "use binary_cross_entropy_with_logits, or call amp.register_float_function(torch, 'sigmoid') before initialize",
    ),
    "optimizer-after-initialize": Rule(
        WARNING,
        "an optimizer created after amp.initialize, which does not know it",
        "create it before, or call amp.initialize again",
    ),
    "checkpoint-without-amp": Rule(
        NOTE,
        "a checkpoint with the optimizer's state but without amp.state_dict()",
        "save and load it too; otherwise a resumed run starts with the initial loss scale and may skip a few steps",
    ),
    "conditional-initialize": Rule(
        NOTE,
        "amp.initialize is called only under this condition; otherwise the script trains without amp",
        "give `run` and `ab` the script's option that makes it true",
    ),
    "local-rank": Rule(
        NOTE,
        "an option --local_rank, which no launcher of torch 2 passes: torchrun only sets the variable LOCAL_RANK, and "
        "torch.distributed.launch passes --local-rank",
        "torchrun --nproc_per_node 2 -m ampcompat run SCRIPT --local_rank {local_rank} passes it",
    ),
    "float16-without-scaler": Rule(
        WARNING,
        "the loss of a float16 autocast region without a GradScaler: small gradients become zero",
        "scale it with torch.amp.GradScaler, or use dtype=torch.bfloat16; or try `run --opt-level O1`, which scales "
        "it; `ampcompat audit` runs the script and counts them",
    ),
    "backward-in-autocast": Rule(
        WARNING,
        "backward() inside an autocast region, which should have only the forward pass and the loss",
        "end the region before it",
    ),
    "step-in-autocast": Rule(
        NOTE,
        "weights are updated inside an autocast region, which may cast what the update multiplies",
        "end the region before it",
    ),
    "scaler-with-bfloat16": Rule(
        NOTE,
        "a GradScaler where autocast computes in bfloat16, whose gradients do not underflow",
        "leave it out, or give enabled=False",
    ),
    "clip-scaled-gradients": Rule(
        WARNING,
        "gradients clipped while they are multiplied by the scale of a GradScaler",
        "call scaler.unscale_(optimizer) before",
    ),
    "scaler-update-missing": Rule(
        WARNING,
        "a GradScaler whose update() is never called: the next step() raises an error",
        "call update() after the last step() of an iteration",
    ),
    "half-weights-trained": Rule(
        WARNING,
        "half weights are trained by an optimizer without float32 masters: updates smaller than half a unit of their "
        "last place are lost",
        "keep the weights float32 and compute under autocast, or train with masters: `run --opt-level O5`; "
        "`ampcompat audit` runs the script and counts what is lost",
    ),
    "optimizer-of-tensors": Rule(
        NOTE,
        "an optimizer of tensors that are not params of a module: no level can be forced on it",
        "make them params of a torch.nn.Module and call it",
    ),
    "functional-gradients": Rule(
        NOTE,
        "gradients of torch.func, computed outside of modules: no level can be forced on them",
        "call the module and loss.backward()",
    ),
    "cast-by-hand": Rule(
        NOTE,
        "a model is cast to half after its optimizer was created: no level can be forced on it",
        "remove the cast; for a half copy, cast copy.deepcopy(model)",
    ),
    "first-fsdp": Rule(
        NOTE,
        "FullyShardedDataParallel (FSDP1), on which no level can be forced",
        "use torch.distributed.fsdp.fully_shard",
    ),
    "step-in-backward": Rule(
        NOTE,
        "an optimizer steps in a hook of the backward pass: O1 and O2, whose loss is scaled, cannot be forced",
        "call step() after backward(), or force another level",
    ),
    "inner-step": Rule(
        NOTE,
        "an inner optimizer steps outside of the outer one's step(): O2 and O5, which have master weights, cannot be "
        "forced",
        "call step(closure) of the outer one, or force another level",
    ),
}


def finding(rule, place, detail="", severity=None):
    """Return the ``Problem`` of a rule at a place; ``detail`` comes first in the message."""
    row = RULES[rule]
    text = f"{detail}: {row.title}" if detail else row.title
    return Problem(place, rule, f"{text}; {row.remedy}.", severity or row.severity)
