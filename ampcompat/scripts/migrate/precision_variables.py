"""The combined result of all calls of ``amp.initialize``: the variables of the new script, and how it casts."""

import libcst as cst

from . import syntax
from .branches import negated
from .grad_scaler_setup import Setup

_STATES = {"apex.amp.state_dict", "apex.amp.load_state_dict"}
_SCALES = {"apex.amp.scale_loss", "apex.amp.handle.scale_loss"}


class PrecisionSetup:
    """The settings of autocast and the GradScaler.

    Args:
        calls: the calls of ``amp.initialize``.
        uses: full names of all calls of Apex.
        facts: the script's ``ScriptFacts``.
        shared: whether a function ``autocast`` is used instead of its settings.

    Attributes:
        setups: call -> ``Setup``.
        autocasts: whether there is autocast at all; False if the level is O0.
        has_scaler: whether there is a GradScaler, which bfloat16 and models that are not trained do not need.
    """

    def __init__(self, calls, uses, facts, shared):
        self._names = facts.names
        self.setups = {call: Setup(call, facts.options) for call in calls}
        setups = list(self.setups.values())
        self.autocasts = not all(each.is_always_off for each in setups)
        self._dtypes = set().union(*(each.dtypes for each in setups))
        self._has_flag = self.autocasts and (facts.is_guarded or not all(each.is_always_on for each in setups))
        self._shared = shared and self.autocasts
        trains = bool(uses & _SCALES) or any(each.has_optimizer for each in setups)
        scales = trains and "torch.float16" in self._dtypes and self.autocasts
        self.has_scaler = scales or bool(uses & _STATES)

    def autocast(self):
        """Return the context of autocast, as source."""
        return self._names.autocast + "()" if self._shared else self._context()

    def _context(self):
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
        if self._shared:
            lines += ["", f"def {names.autocast}():", "    return " + self._context()]
            lines += [""] if self.has_scaler else []
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
        if not ifs or not (self._has_flag or self.has_scaler or self._shared):
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
    for each in reversed(around):
        if not isinstance(each, (cst.If, cst.Try)) or "__main__" in syntax.text(getattr(each, "test", each.body)):
            break
        found.insert(0, each)
    while found and isinstance(found[0], cst.Try):
        found.pop(0)
    return [each for each in found if isinstance(each, cst.If)]


def _test(statement, call):
    """Return the condition under which an ``if`` reaches a call."""
    is_body = any(each is call for each in syntax.calls(statement.body))
    return statement.test if is_body else syntax.expression(negated(statement.test))
