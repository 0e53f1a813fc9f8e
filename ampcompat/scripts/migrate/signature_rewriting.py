"""Adds parameters, arguments and results of functions, and attributes of ``self``."""

import libcst as cst

from . import syntax
from .branches import MARK

NO_AUTOCAST = "contextlib.nullcontext"


class SignatureRewriter(cst.CSTTransformer):
    """Changes functions and their calls.

    Args:
        marks: function node -> the note on what is left to do by hand.
        optional: function nodes whose new parameter has a default.
        parameters, arguments, results, targets, attributes: as in ``VariablePassing``, with lists of variables.
    """

    def __init__(self, marks, optional, parameters, arguments, results, targets, attributes):
        super().__init__()
        self._marks, self._optional = marks, optional
        self._parameters, self._arguments, self._results = parameters, arguments, results
        self._targets, self._attributes, self._owners = targets, attributes, []

    def visit_ClassDef(self, node):
        """Note which names are attributes of ``self``."""
        self._owners.append(self._attributes.get(node, ()))

    def leave_ClassDef(self, original_node, updated_node):
        """Forget them."""
        self._owners.pop()
        return updated_node

    def _begin_other(self, node):
        """Begin the name of an attribute or keyword, which is not a variable."""
        self._owners.append(())

    def _end_other(self, node):
        self._owners.pop()

    visit_Attribute_attr = visit_Arg_keyword = _begin_other
    leave_Attribute_attr = leave_Arg_keyword = _end_other

    def leave_Name(self, original_node, updated_node):
        """Write ``self.`` before an attribute."""
        if self._owners and updated_node.value in self._owners[-1]:
            return cst.Attribute(value=cst.Name("self"), attr=updated_node)
        return updated_node

    def leave_FunctionDef(self, original_node, updated_node):
        """Add parameters and results."""
        names = self._parameters.get(original_node, ())
        if names:
            default = NO_AUTOCAST if original_node in self._optional else None
            updated_node = updated_node.with_changes(params=_with_parameters(updated_node.params, names, default))
        names = self._results.get(original_node, ())
        if names:
            updated_node = updated_node.with_changes(body=_with_results(updated_node.body, names))
        return self._marked(original_node, updated_node)

    def _marked(self, original, updated):
        if original not in self._marks:
            return updated
        comment = cst.EmptyLine(comment=cst.Comment(MARK + self._marks[original]))
        return updated.with_changes(leading_lines=[*updated.leading_lines, comment])

    def leave_Call(self, original_node, updated_node):
        """Add arguments: by position if all others are."""
        names = self._arguments.get(original_node, ())
        if not names:
            return updated_node
        given = list(updated_node.args)
        by_name = self._has_defaults(original_node) or any(each.keyword or each.star for each in given)
        source = "f({0}={0})" if by_name else "f({0})"
        added = [syntax.expression(source.format(name)).args[0] for name in names]
        return updated_node.with_changes(args=_joined(given, added))

    def _has_defaults(self, call):
        name = call.func.value
        functions = [each for each in self._parameters if each.name.value == name]
        params = functions[0].params if functions else None
        return params is not None and _needs_keywords(params)

    def leave_SimpleStatementLine(self, original_node, updated_node):
        """Unpack one more result."""
        names = self._targets.get(original_node, ())
        if not names:
            return updated_node
        line = updated_node.body[0]
        before = [] if isinstance(line, cst.Expr) else [syntax.bare_text(line.targets[0].target)]
        new = syntax.statements("{} = {}\n".format(", ".join(before + list(names)), syntax.text(line.value)))[0]
        value = line.value
        return updated_node.with_changes(body=[new.body[0].with_changes(value=value)])


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
    returned = [each for each in syntax.own_nodes(block) if isinstance(each, cst.Return)]
    if not returned:
        return block.with_changes(body=lines + syntax.statements("return {}\n".format(", ".join(names))))
    source = "return {}, {}\n".format(syntax.bare_text(returned[0].value), ", ".join(names))
    lines[-1] = lines[-1].with_changes(body=syntax.statements(source)[0].body)
    return block.with_changes(body=lines)
