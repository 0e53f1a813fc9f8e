"""The code that replaces ``amp.initialize``: settings of autocast and a GradScaler."""

import ast

import libcst as cst

from ..reading.calls import SCALE_LOSS, option_of
from ..reading.loops_without_apex import LEVELS
from ..reading.names import called, string
from . import syntax
from .branches import negated

_STATES = {"apex.amp.state_dict", "apex.amp.load_state_dict"}
_FLOAT16, _BFLOAT16 = ("O1", "O2", "O3"), ("O4", "O5")
#: Keywords of ``amp.initialize`` without effect under autocast, whose weights stay float32.
_DROPPED = ("keep_batchnorm_fp32", "master_weights", "cast_model_type", "verbosity", "num_losses")
_DROPPED += ("patch_torch_functions", "min_loss_scale", "max_loss_scale")
_KNOWN = ("models", "optimizers", "enabled", "opt_level", "loss_scale") + _DROPPED
_NOTES = {
    "O2": "O2 becomes autocast: weights stay float32, so there are no master weights, and memory is as at O1",
    "O3": "O3 becomes autocast with a loss scale: weights stay float32",
    "O5": "O5 becomes autocast with bfloat16: weights stay float32, so there are no master weights",
}
#: The factor of a static loss scale at an overflow: GradScaler wants less than 1, and a float32 times this is itself.
_KEPT = "1 - 2**-53"
_AT_RUN_TIME = "the level is known only at run time: {}; weights are float32 at every level"


class Setup:
    """One call of ``amp.initialize``.

    Attributes:
        problem: why it cannot be rewritten, or None.
        notes: what changes.
        levels: the levels that it may request.
        is_always_on: whether autocast is enabled whatever the options are.
        is_always_off: whether the level is O0.
        has_optimizer: whether optimizers are passed.
    """

    def __init__(self, call, options):
        self._call, self._options, self.notes = call, options, []
        self._level, self._enabled = (
            syntax.argument(call, 3, "opt_level"),
            syntax.argument(call, 2, "enabled"),
        )
        self.levels = ("O1",) if self._level is None else options.levels(self._level)
        self.problem = self._find_problem()
        self.is_always_off = self.levels == ("O0",)
        self.is_always_on = self._has_enabled_on() and "O0" not in self.levels
        self.has_optimizer = syntax.argument(call, 1, "optimizers") is not None
        self._add_notes()

    @property
    def dtypes(self):
        """The dtypes that autocast may have, as source."""
        kinds = ((_FLOAT16, "torch.float16"), (_BFLOAT16, "torch.bfloat16"))
        return {dtype for levels, dtype in kinds if set(levels) & set(self.levels)}

    def _add_notes(self):
        if len(self.levels) == 1 and self.levels[0] in _NOTES:
            self.notes.append(_NOTES[self.levels[0]])
        if isinstance(self._enabled, cst.SimpleString):
            self.notes.append("the third argument is enabled, not opt_level: the level is O1 if no other is given")
        if len(self.levels) > 1:
            kinds = ((("O0",), "{} disables autocast"), (_FLOAT16, "{} mean float16"), (_BFLOAT16, "{} bfloat16"))
            told = [(", ".join(each for each in levels if each in self.levels), text) for levels, text in kinds]
            self.notes.append(_AT_RUN_TIME.format(", ".join(text.format(names) for names, text in told if names)))
        for name in ("min_loss_scale", "max_loss_scale"):
            if syntax.argument(self._call, 99, name) is not None:
                self.notes.append(f"{name} has no counterpart in GradScaler")
        if _number(self._scale_text()) is not None:
            self.notes.append("a static loss scale is kept, but GradScaler skips a step that overflows; Apex did not")
        for name in ("keep_batchnorm_fp32", "master_weights", "cast_model_type"):
            value = syntax.argument(self._call, 99, name)
            if value is not None and (syntax.name_of(value) or "None") not in ("None", "True", "False"):
                self.notes.append(f"{name} has no effect under autocast: {syntax.text(value)} is no longer read here")

    def _find_problem(self):
        keywords = [each.keyword.value for each in self._call.args if each.keyword is not None]
        unknown = [each for each in keywords if each not in _KNOWN]
        if any(each.star for each in self._call.args):
            return "its arguments are in a dict or list"
        return "no counterpart in torch.amp for {}".format(", ".join(unknown)) if unknown else None

    def _has_enabled_on(self):
        given = self._enabled
        return given is None or syntax.text(given) == "True" or isinstance(given, cst.SimpleString)

    def read_names(self):
        """Return the names that the new statements read."""
        read = [self._level, self._enabled, syntax.argument(self._call, 8, "loss_scale")]
        return set().union(*(syntax.loaded_names(each) for each in read if each is not None))

    def condition(self, tests):
        """Return the condition under which autocast is enabled, as source.

        Args:
            tests: the tests of the ``if`` statements around the call.
        """
        if self.is_always_off:
            return "False"
        nodes = list(tests) if self._has_enabled_on() else [*tests, self._enabled]
        parts = list(dict.fromkeys(map(self._as_bool, nodes)))
        if "O0" in self.levels:
            parts.append(f'{syntax.operand(self._level)} != "O0"')
        return " and ".join(parts) or "True"

    def _as_bool(self, node):
        is_bool = isinstance(node, (cst.Comparison, cst.UnaryOperation)) or self._options.is_flag(node)
        if is_bool and not isinstance(node, (cst.Comparison, cst.UnaryOperation)):
            return syntax.operand(node)
        return syntax.text(node) if is_bool else f"bool({syntax.text(node)})"

    def dtype(self):
        """Return the dtype of autocast, as source."""
        dtypes = self.dtypes
        if len(dtypes) < 2:
            return dtypes.pop() if dtypes else "torch.float16"
        levels = ", ".join(f'"{each}"' for each in self.levels if each in _BFLOAT16)
        among = f"in ({levels})" if "," in levels else "== " + levels
        return f"torch.bfloat16 if {syntax.operand(self._level)} {among} else torch.float16"

    def scale_options(self):
        """Return GradScaler's options for a static scale; if the value is known only at run time, depending on it."""
        source = self._scale_text()
        static = _number(source)
        if source in ("dynamic", "None") or static is not None:
            return (
                []
                if static is None
                else [f"init_scale={static}", "growth_interval=2**31 - 1", "backoff_factor=" + _KEPT]
            )
        dynamic = '{} in (None, "dynamic")'.format(syntax.operand(syntax.argument(self._call, 8, "loss_scale")))
        return [
            f"init_scale=2.0**16 if {dynamic} else float({source})",
            f"growth_interval=2000 if {dynamic} else 2**31 - 1",
            f"backoff_factor=0.5 if {dynamic} else {_KEPT}",
        ]

    def _scale_text(self):
        scale = syntax.argument(self._call, 8, "loss_scale")
        return "None" if scale is None else syntax.text(scale).strip("\"'")

    def result(self):
        """Return the result of the call: its models and optimizers, as source."""
        models, optimizers = (syntax.argument(self._call, at, name) for at, name in enumerate(("models", "optimizers")))
        both = [syntax.text(each) for each in (models, optimizers) if each is not None]
        return ", ".join(both)


class Options:
    """The facts about a script's command line from its ``add_argument`` calls, in the nodes of its syntax tree."""

    def __init__(self, nodes):
        self._choices, self._flags = {}, set()
        for node in nodes:
            if called(node) != "add_argument":
                continue
            keywords = {each.arg: each.value for each in node.keywords}
            name, choices = option_of(node)[0], keywords.get("choices")
            if isinstance(choices, (ast.List, ast.Tuple, ast.Set)):
                self._choices[name] = {string(each) for each in choices.elts}
            if string(keywords.get("action")) in ("store_true", "store_false"):
                self._flags.add(name)

    def levels(self, node):
        """Return the levels that an expression may have."""
        if isinstance(node, cst.SimpleString):
            text = syntax.text(node).strip("\"'")
            return (text,) if text in LEVELS else LEVELS
        if isinstance(node, cst.IfExp):
            both = set(self.levels(node.body)) | set(self.levels(node.orelse))
            return tuple(each for each in LEVELS if each in both)
        known = self._choices.get((syntax.name_of(node) or "").rpartition(".")[2])
        return tuple(each for each in LEVELS if known is None or each in known) or LEVELS

    def is_flag(self, node):
        """Return whether an expression is an option that is True or False: ``args.fp16`` of a ``store_true``."""
        name = syntax.name_of(node)
        return name is not None and "." in name and name.rpartition(".")[2] in self._flags


def _number(source):
    try:
        return float(source)
    except ValueError:
        return None


class PrecisionSetup:
    """The settings of autocast and the GradScaler.

    Args:
        calls: the calls of ``amp.initialize``.
        uses: full names of all calls of Apex.
        facts: the script's ``ScriptFacts``.

    Attributes:
        setups: call -> ``Setup``.
        autocasts: whether there is autocast at all; False if the level is O0.
        has_scaler: whether there is a GradScaler, which bfloat16 and models that are not trained do not need.
    """

    def __init__(self, calls, uses, facts):
        self._names = facts.names
        self.setups = {call: Setup(call, facts.options) for call in calls}
        setups = list(self.setups.values())
        self.autocasts = not all(each.is_always_off for each in setups)
        self._dtypes = set().union(*(each.dtypes for each in setups))
        self._has_flag = self.autocasts and (facts.is_guarded or not all(each.is_always_on for each in setups))
        trains = bool(uses & set(SCALE_LOSS)) or any(each.has_optimizer for each in setups)
        scales = trains and "torch.float16" in self._dtypes and self.autocasts
        self.has_scaler = scales or bool(uses & _STATES)

    def autocast(self):
        """Return the context of autocast, as source."""
        enabled = [", enabled=" + self._names.flag] if self._has_flag else []
        dtype = self._names.dtype if len(self._dtypes) > 1 else "".join(self._dtypes)
        return "torch.autocast({}, dtype={}{})".format(self._names.device, dtype, "".join(enabled))

    def lines(self, setup, tests=()):
        """Return the statements that replace a call of ``amp.initialize``, as source; empty if nothing is needed."""
        names, lines = self._names, []
        if self._has_flag:
            lines.append(f"{names.flag} = {setup.condition(tests)}")
        if len(self._dtypes) > 1:
            lines.append(f"{names.dtype} = {setup.dtype()}")
        if self.has_scaler:
            options = [names.device] + self._enabled() + setup.scale_options()
            given = ", ".join(options) if len(options) < 3 else "\n    " + ",\n    ".join(options) + ",\n"
            lines.append(f"{names.scaler} = torch.amp.GradScaler({given})")
        return "".join(line + "\n" for line in lines)

    def _enabled(self):
        if "torch.float16" not in self._dtypes:
            return ["enabled=False"]
        parts = [self._names.flag] if self._has_flag else []
        parts += [self._names.dtype + " == torch.float16"] if len(self._dtypes) > 1 else []
        return ["enabled=" + " and ".join(parts)] if parts else []

    def _off(self):
        """Return the statements that disable everything, if an ``if`` may or may not set it up."""
        names = self._names
        lines = [f"{names.flag} = False"]
        lines += [f"{names.dtype} = torch.float16"] if len(self._dtypes) > 1 else []
        if self.has_scaler:
            lines.append(f"{names.scaler} = torch.amp.GradScaler({names.device}, enabled=False)")
        return "".join(line + "\n" for line in lines)

    def placed(self, setup, call, around):
        """Return (an ``if`` before which the statements belong, or None; the statements), given the context of a call.

        A setup under ``if args.fp16:`` becomes one with that condition before the ``if``, since the variables are
        needed in either case.
        """
        ifs = _ifs_around(around)
        if not ifs or not (self._has_flag or self.has_scaler):
            return None, self.lines(setup)
        outer = ifs[0]
        if len([each for each in syntax.calls(outer) if each in self.setups]) > 1 or self._changes_options(
            outer, setup
        ):
            return None, self.lines(setup)
        return outer, self.lines(setup, [_test(each, call) for each in ifs])

    def before(self, statement):
        """Return the statements needed before an ``if`` with several setups, or one that cannot be put before it."""
        calls = [each for each in syntax.calls(statement) if each in self.setups]
        if not calls or (len(calls) > 1 and isinstance(statement.orelse, cst.Else)):
            return ""
        is_moved = len(calls) == 1 and not self._changes_options(statement, self.setups[calls[0]])
        return "" if is_moved or not self._has_flag else self._off()

    def _changes_options(self, statement, setup):
        return bool(setup.read_names() & syntax.assigned_names(statement.body))


def _ifs_around(around):
    """Return the ``if`` statements around a call, outermost first, up to a function or loop."""
    found = []
    for each in around:
        if not isinstance(each, (cst.If, cst.Try)) or "__main__" in syntax.text(getattr(each, "test", each.body)):
            break
        found.insert(0, each)
    while found and isinstance(found[0], cst.Try):
        found.pop(0)
    return [each for each in found if isinstance(each, cst.If)]


def _test(statement, call):
    """Return the condition under which an ``if`` reaches a call."""
    is_body = any(each is call for each in syntax.calls(statement.body))
    return statement.test if is_body else cst.parse_expression(negated(statement.test))
