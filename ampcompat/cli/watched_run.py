"""One run of a script with an observer in its process: what ``forecast`` and ``audit`` share.

This process does not import torch.
"""

from ..abtest.planned_run import PlannedRun
from ..abtest.report_data import NOTHING_TO_RECORD
from ..abtest.running.subprocess_supervisor import SubprocessRun, run_one
from ..errors import AmpError
from .argument_parser import whole_number
from .run_command import add_device, add_script

#: The number of optimizer steps that are observed without ``--steps``.
STEPS = 50


def add_options(parser, least_steps):
    """Add the options of the run, and the script, to a command's parser."""
    add = parser.add_argument
    steps = f"optimizer steps to observe; default: {STEPS}"
    add("--steps", type=whole_number(least_steps), default=STEPS, metavar="N", help=steps)
    seed = "seed of Python, NumPy and torch; default: 0"
    add("--seed", type=whole_number(0, 2**32 - 1), default=0, metavar="S", help=seed)
    add("--verbose", action="store_true", help="print the script's output")
    add_device(parser)
    add_script(parser)


def observed(options, command, progress, name, watch, run_options=None, label=None, checkpoints=(), **planned):
    """Run a script in a child process, and return what its observer has made: a dict, the event ``name``.

    Args:
        options: with ``steps`` (None: ``STEPS``), ``seed``, ``device`` and ``verbose``.
        watch: the module that makes the observer in the script's process (see ``RunOptions``).
        run_options: further keyword arguments of ``RunOptions``.
        label: of the run in the progress; None: ``name``.
        checkpoints: those of the series' other runs, as ``Report.checkpoints`` returns them.
        planned: further arguments of the ``PlannedRun``.

    Raises:
        AmpError: there is none, since the script failed before a step was observed; with the end of its output.
    """
    recorded = {"watch": watch, "losses_by_line": True, "diagnose": False, "memory": False, "verbosity": 0}
    run = PlannedRun(
        command=command,
        seed=options.seed,
        steps=options.steps or STEPS,
        options=dict(recorded, **(run_options or {})),
        device=options.device,
        **planned,
    )
    child = SubprocessRun(run, options.verbose, name=name, checkpoints=checkpoints)
    told = {}  # what all events have; only the newest values of those that recur
    run_one(child, label or name, progress, told.update)
    if name in told:
        return told[name]
    error = None if child.run.error in NOTHING_TO_RECORD else child.run.error
    reason = error or told.get("missing", "it did not make a step")
    raise AmpError("\n".join(filter(None, [child.output.strip(), reason])))
