"""``if`` statements with a branch for Apex and one for plain torch, and tests whether Apex is installed."""

import libcst as cst

from . import syntax

#: The beginning of comments that say what is left to do by hand.
MARK = "# ampcompat migrate: "
#: Replaces ``amp.initialize`` in an ``if`` before which its statements were put; removed with the imports.
MOVED = "_ampcompat_moved"


class Branches:
    """Rewrites ``if`` statements.

    Args:
        names: the new variables' ``NewNames``.
        fallback_names: names that are None if Apex is missing.
    """

    def __init__(self, names, fallback_names):
        self._names, self._fallback_names = names, fallback_names

    def never_runs(self, statement):
        """Return whether an ``if`` without ``else`` tests whether Apex is missing."""
        return isinstance(statement, cst.If) and statement.orelse is None and self._value(statement.test) is False

    def _value(self, test):
        """Return the value of a test if Apex is not needed; None if it depends on something else."""
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            target = test.comparisons[0]
            if syntax.name_of(test.left) in self._fallback_names and syntax.name_of(target.comparator) == "None":
                return {cst.Is: False, cst.IsNot: True}.get(type(target.operator))
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            if syntax.name_of(test.expression) in self._fallback_names:
                return False
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
            return False if False in (self._value(test.left), self._value(test.right)) else None
        return None

    def joined(self, updated, uses_apex):
        """Return the statements that replace an ``if`` whose branches have become the same; None if they differ.

        Args:
            updated: the ``if`` after its branches were rewritten.
            uses_apex: whether its first branch used Apex; otherwise its second did.
        """
        if not isinstance(updated.orelse, cst.Else):
            return None
        both = [list(updated.body.body), list(updated.orelse.body.body)]
        with_apex, plain = both if uses_apex else both[::-1]
        unscaling = [each for each in with_apex if self._is_unscale(each)]
        others = [each for each in with_apex if each not in unscaling]
        if len(others) != len(plain):
            return None
        result, merged = [], list(zip(others, plain))
        for ours, theirs in merged:
            same = self._same(ours, theirs)
            if same is None:
                return None
            result.append(same)
        at = with_apex.index(unscaling[0]) if unscaling else 0
        result[at:at] = unscaling[:1]
        lines = [*updated.leading_lines, *result[0].leading_lines]
        return [result[0].with_changes(leading_lines=lines)] + result[1:]

    def _is_unscale(self, statement):
        return syntax.text(statement).strip().startswith(self._names.scaler + ".unscale_(")

    def _same(self, ours, theirs):
        """Return one statement for two that do the same, in the branch with Apex and the plain one, or None."""
        mine, other = syntax.text(_bare(ours)).strip(), syntax.text(_bare(theirs)).strip()
        if mine == other:
            return ours
        call = theirs.body[0].value if _is_call(theirs) else None
        if call is None:
            return None
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward":
            scaled = f"{self._names.scaler}.scale({syntax.text(call.func.value)})"
            rest = other[len(syntax.text(call.func.value)) :]
            return ours if mine == scaled + rest else None
        if not _is_call(ours) or not call.args or not ours.body[0].value.args:
            return None
        first = ours.body[0].value.args[0]
        same_params = mine.replace(syntax.text(first.value), syntax.text(call.args[0].value), 1) == other
        is_clip = (syntax.name_of(call.func) or "").rpartition(".")[2].startswith("clip_grad")
        return theirs.with_changes(leading_lines=ours.leading_lines) if is_clip and same_params else None


def _bare(statement):
    """Return a statement without the comments around it."""
    changes = {"leading_lines": ()}
    if isinstance(statement, cst.SimpleStatementLine):
        changes["trailing_whitespace"] = cst.TrailingWhitespace()
    return statement.with_changes(**changes)


def _is_call(statement):
    node = syntax.first_of(statement, cst.Expr)
    return node is not None and isinstance(node.value, cst.Call)


def negated(test):
    """Return the source of the negation of a test."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return syntax.text(test.expression)
    return "not " + syntax.operand(test)
