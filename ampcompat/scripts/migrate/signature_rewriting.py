"""Adds parameters, arguments and results of functions, and attributes of ``self``."""

import libcst as cst

from . import syntax
from .branches import MARK

NO_AUTOCAST = "contextlib.nullcontext"


class SignatureRewriter(syntax.PlacedTransformer):
    """Changes functions and their calls, all of them given as (line, column).

    Args:
        marks: function -> the note on what is left to do by hand.
        optional: functions whose new parameter has a default.
        attributes: names that become attributes of ``self``.
        by_name: calls that get new arguments by keyword.
        parameters, arguments, results, targets: as in ``VariablePassing``, with lists of variables.
    """

    def __init__(self, marks, optional, attributes, by_name, parameters, arguments, results, targets):
        super().__init__()
        self._marks, self._optional, self._attributes, self._by_name = marks, optional, attributes, by_name
        self._parameters, self._arguments, self._results, self._targets = parameters, arguments, results, targets

    def leave_Name(self, original_node, updated_node):
        """Write ``self.`` before an attribute."""
        is_attribute = self.place(original_node) in self._attributes
        return cst.Attribute(value=cst.Name("self"), attr=updated_node) if is_attribute else updated_node

    def leave_FunctionDef(self, original_node, updated_node):
        """Add parameters and results, and a comment on what is left."""
        place = self.place(original_node)
        if place in self._parameters:
            default = NO_AUTOCAST if place in self._optional else None
            params = _with_parameters(updated_node.params, self._parameters[place], default)
            updated_node = updated_node.with_changes(params=params)
        if place in self._results:
            updated_node = updated_node.with_changes(body=_with_results(updated_node.body, self._results[place]))
        if place in self._marks:
            comment = cst.EmptyLine(comment=cst.Comment(MARK + self._marks[place]))
            updated_node = updated_node.with_changes(leading_lines=[*updated_node.leading_lines, comment])
        return updated_node

    def leave_Call(self, original_node, updated_node):
        """Add arguments."""
        place = self.place(original_node)
        names = self._arguments.get(place, ()) if isinstance(original_node.func, cst.Name) else ()
        source = "f({0}={0})" if place in self._by_name else "f({0})"
        added = [syntax.expression(source.format(name)).args[0] for name in names]
        return updated_node.with_changes(args=_joined(list(updated_node.args), added)) if added else updated_node

    def _unpacked(self, original_node, updated_node):
        """Unpack more results."""
        names = self._targets.get(self.place(original_node), ())
        if not names:
            return updated_node
        is_call = isinstance(updated_node, cst.Expr)
        before = [] if is_call else [syntax.bare_text(updated_node.targets[0].target)]
        new = syntax.statements("{} = f()\n".format(", ".join(before + list(names))))[0].body[0]
        return new.with_changes(value=updated_node.value, semicolon=updated_node.semicolon)

    leave_Assign = leave_Expr = _unpacked


def _needs_keywords(params):
    """Return whether new parameters must be given by keyword: after defaults, ``*args`` or other such parameters."""
    return _has_star(params) or any(each.default is not None for each in params.params)


def _has_star(params):
    return isinstance(params.star_arg, (cst.Param, cst.ParamStar)) or bool(params.kwonly_params)


def _with_parameters(params, names, default=None):
    """Return parameters with new ones; ``default``: the source of the last one's default."""
    new = [cst.Param(cst.Name(name)) for name in names]
    if default is not None:
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        new[-1] = new[-1].with_changes(default=syntax.expression(default), equal=equal)
    if not _needs_keywords(params) or (default is not None and len(new) == 1 and not _has_star(params)):
        return params.with_changes(params=_joined(list(params.params), new))
    star = params.star_arg if isinstance(params.star_arg, (cst.Param, cst.ParamStar)) else cst.ParamStar()
    return params.with_changes(star_arg=star, kwonly_params=_joined(list(params.kwonly_params), new))


def _joined(given, added):
    """Return elements with others appended, in the layout of the last existing one."""
    if not given:
        return [*(each.with_changes(comma=syntax.COMMA) for each in added[:-1]), *added[-1:]]
    last = given[-1]
    has_comma = isinstance(last.comma, cst.Comma)
    between = given[-2].comma if len(given) > 1 else syntax.COMMA
    end = last.comma if has_comma else cst.MaybeSentinel.DEFAULT
    new = [each.with_changes(comma=between) for each in added[:-1]] + [added[-1].with_changes(comma=end)]
    if hasattr(last, "whitespace_after_arg"):
        new[-1] = new[-1].with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    return given[:-1] + [last.with_changes(comma=between)] + new


def _with_results(block, names):
    """Return the body of a function that returns more."""
    lines = list(block.body)
    returned = syntax.first_of(lines[-1], cst.Return)
    if returned is None:
        return block.with_changes(body=lines + syntax.statements("return {}\n".format(", ".join(names))))
    source = "return {}, {}\n".format(syntax.bare_text(returned.value), ", ".join(names))
    lines[-1] = lines[-1].with_changes(body=syntax.statements(source)[0].body)
    return block.with_changes(body=lines)
