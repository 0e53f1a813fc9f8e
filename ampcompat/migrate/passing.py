"""Brings the new variables to the functions that read them: as parameters, results, or attributes of ``self``."""

import libcst as cst

from . import code
from .branches import MARK
from .scopes import Script

DEVICE = '"cuda" if torch.cuda.is_available() else "cpu"'
MISSING = "{} needs {}: pass it to here from {}"


class Passing:
    """What is to be passed in a script, found in its new source.

    Args:
        module: the new module.
        variables: names of the new variables, in the order in which they are passed.

    Attributes:
        parameters: function node -> variables that it gets.
        arguments: call node -> variables that it passes.
        results: function node -> variables that it returns too.
        targets: statement node -> variables that it takes from a call.
        attributes: class node -> variables that are attributes of ``self``.
        missing: function node -> variables that cannot be passed to it.
    """

    def __init__(self, module, variables):
        self._variables = variables
        self._script = Script(module, set(variables))
        self.parameters, self.arguments, self.results, self.targets = {}, {}, {}, {}
        self.attributes, self.missing = {}, {}
        self._functions = self._script.functions()
        self._setters = [(scope, set(scope.sets)) for scope in self._script.scopes if scope.name]
        self._make_attributes()
        waiting = [(scope, name) for scope in self._script.scopes for name in sorted(scope.reads)]
        while waiting:
            scope, name = waiting.pop(0)
            if not self._is_attribute(scope, name) and not scope.has(name):
                waiting += self._provide(scope, name)

    @property
    def is_needed(self):
        """Whether functions get settings of autocast that they do not set."""
        passed = set().union(*self.parameters.values(), *self.results.values())
        return bool(passed.intersection(self._variables[1:])) and not self.attributes

    def _ordered(self, names):
        return [each for each in self._variables if each in names]

    def _make_attributes(self):
        """Make attributes of what one method sets and another reads."""
        for scope in self._script.scopes:
            if scope.is_method and scope.sets:
                others = [each for each in self._script.scopes if each.outermost() is not scope]
                inside = [each for each in others if each.outermost().parent is scope.parent]
                if any(scope.sets & each.reads for each in inside):
                    self.attributes.setdefault(scope.parent.node, set()).update(scope.sets)

    def _is_attribute(self, scope, name):
        owner = scope.outermost().parent
        return owner is not None and name in self.attributes.get(owner.node, ())

    def _provide(self, scope, name):
        """Bring a variable to a scope; return the (scope, name) pairs that now need it too."""
        source = self._source(scope, name)
        if source is not None:
            self._return(source, name)
            return []
        target = scope.outermost()
        callers = list(self._script.callers(target.name))
        is_plain = target.is_function and self._functions.get(target.name) is target
        if not is_plain or target.name in self._script.mentioned or not self._is_made_before(target, name):
            self.missing.setdefault(target.node, set()).add(name)
            target.sets.add(name)
            return []
        self.parameters.setdefault(target.node, set()).add(name)
        target.sets.add(name)
        for _, call, _ in callers:
            self.arguments.setdefault(call, set()).add(name)
        return [(caller, name) for caller, _, _ in callers]

    def _is_made_before(self, target, name):
        """Return whether every chain of calls that reaches a function comes by one that has the variable."""
        waiting, seen = [target], set()
        while waiting:
            scope = waiting.pop()
            is_there = scope.has(name) or self._is_attribute(scope, name) or self._source(scope, name) is not None
            if scope in seen or (scope is not target and is_there):
                continue
            seen.add(scope)
            outer = scope.outermost()
            if self._functions.get(outer.name) is not outer or outer.name in self._script.mentioned:
                return False  # the module itself, a method, or a function that is called by another name
            waiting += [caller for caller, _, _ in self._script.callers(outer.name)]
        return True

    def _source(self, scope, name):
        """Return a function that sets the variable, is called in the scope, and can return it; else None."""
        for call, _ in scope.calls:
            function = self._functions.get(call.func.value)
            if function is not None and name in function.sets and name not in self.parameters.get(function.node, ()):
                if function is not scope and self._can_return(function):
                    return function
        return None

    def _can_return(self, function):
        """Return whether a function can return one more value: it has one ``return``, and all calls take its result."""
        callers = list(self._script.callers(function.name))
        if function.name in self._script.mentioned or any(statement is None for _, _, statement in callers):
            return False
        returns = [each for each in code.own_nodes(function.node.body) if isinstance(each, cst.Return)]
        lines = [statement.body[0] for _, _, statement in callers]
        if not returns:
            return all(isinstance(each, cst.Expr) for each in lines)
        last = function.node.body.body[-1]
        is_last = isinstance(last, cst.SimpleStatementLine) and last.body[0] is returns[0]
        if len(returns) > 1 or not is_last or returns[0].value is None:
            return False
        return all(_takes(each, returns[0].value) for each in lines)

    def _return(self, function, name):
        self.results.setdefault(function.node, set()).add(name)
        for caller, _, statement in self._script.callers(function.name):
            caller.sets.add(name)
            self.targets.setdefault(statement, set()).add(name)

    def transformer(self):
        """Return the transformer that passes the variables."""
        order = self._ordered
        chosen = (self.parameters, self.arguments, self.results, self.targets, self.attributes)
        marks = {node: self._missing_text(node, order(names)) for node, names in self.missing.items()}
        return _Transformer(marks, *[{node: order(names) for node, names in each.items()} for each in chosen])

    def _missing_text(self, node, names):
        setters = sorted({scope.name + "()" for scope, sets in self._setters if sets & set(names)})
        name = node.name.value + "()" if isinstance(node, cst.FunctionDef) else "the script"
        return MISSING.format(name, " and ".join(names), " and ".join(setters))

    def left(self):
        """Return what is left to do by hand, in words."""
        return [self._missing_text(node, self._ordered(names)) for node, names in self.missing.items()]

    def notes(self):
        """Return what changes in the signatures, in words."""
        told = [(self.parameters, "{}() gets {}"), (self.results, "{}() returns {} too")]
        return [
            text.format(node.name.value, " and ".join(self._ordered(names)))
            for chosen, text in told
            for node, names in chosen.items()
        ]


def _takes(line, value):
    """Return whether ``targets = f(...)`` takes a result apart as the function makes it."""
    if not isinstance(line, cst.Assign) or len(line.targets) != 1:
        return False
    target = line.targets[0].target
    if isinstance(value, cst.Tuple):
        return isinstance(target, cst.Tuple) and len(target.elements) == len(value.elements)
    return isinstance(target, (cst.Name, cst.Attribute))


class _Transformer(cst.CSTTransformer):
    """Writes parameters, arguments, results, and attributes."""

    def __init__(self, marks, parameters, arguments, results, targets, attributes):
        super().__init__()
        self._marks = marks
        self._parameters, self._arguments, self._results = parameters, arguments, results
        self._targets, self._attributes, self._owners = targets, attributes, []

    def visit_ClassDef(self, node):
        """Note which names are attributes of ``self``."""
        self._owners.append(self._attributes.get(node, ()))

    def leave_ClassDef(self, original_node, updated_node):
        """Forget them."""
        self._owners.pop()
        return updated_node

    def visit_Attribute_attr(self, node):
        """Begin the name of an attribute, which is no variable."""
        self._owners.append(())

    def leave_Attribute_attr(self, node):
        """End it."""
        self._owners.pop()

    def visit_Arg_keyword(self, node):
        """Begin the name of a keyword, which is no variable."""
        self._owners.append(())

    def leave_Arg_keyword(self, node):
        """End it."""
        self._owners.pop()

    def leave_Name(self, original_node, updated_node):
        """Write ``self.`` before an attribute."""
        if self._owners and updated_node.value in self._owners[-1]:
            return cst.Attribute(value=cst.Name("self"), attr=updated_node)
        return updated_node

    def leave_FunctionDef(self, original_node, updated_node):
        """Add parameters and results."""
        names = self._parameters.get(original_node, ())
        if names:
            updated_node = updated_node.with_changes(params=_with_parameters(updated_node.params, names))
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
        """Add arguments: by position where all are."""
        names = self._arguments.get(original_node, ())
        if not names:
            return updated_node
        given = list(updated_node.args)
        by_name = self._has_defaults(original_node) or any(each.keyword or each.star for each in given)
        source = "f({0}={0})" if by_name else "f({0})"
        added = [code.expression(source.format(name)).args[0] for name in names]
        return updated_node.with_changes(args=_joined(given, added))

    def _has_defaults(self, call):
        name = call.func.value
        functions = [each for each in self._parameters if each.name.value == name]
        params = functions[0].params if functions else None
        return params is not None and _needs_keywords(params)

    def leave_SimpleStatementLine(self, original_node, updated_node):
        """Take one more result."""
        names = self._targets.get(original_node, ())
        if not names:
            return updated_node
        line = updated_node.body[0]
        before = [] if isinstance(line, cst.Expr) else [code.bare_text(line.targets[0].target)]
        new = code.statements("{} = {}\n".format(", ".join(before + list(names)), code.text(line.value)))[0]
        value = line.value
        return updated_node.with_changes(body=[new.body[0].with_changes(value=value)])


def _needs_keywords(params):
    """Return whether new parameters must be given by keyword: after defaults, ``*args`` or other such parameters."""
    has_star = isinstance(params.star_arg, (cst.Param, cst.ParamStar)) or params.kwonly_params
    return bool(has_star) or any(each.default is not None for each in params.params)


def _with_parameters(params, names):
    new = [cst.Param(cst.Name(name)) for name in names]
    if not _needs_keywords(params):
        return params.with_changes(params=_joined(list(params.params), new))
    star = params.star_arg if isinstance(params.star_arg, (cst.Param, cst.ParamStar)) else cst.ParamStar()
    return params.with_changes(star_arg=star, kwonly_params=_joined(list(params.kwonly_params), new))


def _joined(given, added):
    """Return elements with others after them, in the layout of the last given one."""
    if not given:
        return [*(each.with_changes(comma=code.COMMA) for each in added[:-1]), *added[-1:]]
    last = given[-1]
    has_comma = isinstance(last.comma, cst.Comma)
    between = given[-2].comma if len(given) > 1 else code.COMMA
    end = last.comma if has_comma else cst.MaybeSentinel.DEFAULT
    new = [each.with_changes(comma=between) for each in added[:-1]] + [added[-1].with_changes(comma=end)]
    if hasattr(last, "whitespace_after_arg"):
        new[-1] = new[-1].with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    return given[:-1] + [last.with_changes(comma=between)] + new


def _with_results(block, names):
    """Return the body of a function that returns more."""
    lines = list(block.body)
    returned = [each for each in code.own_nodes(block) if isinstance(each, cst.Return)]
    if not returned:
        return block.with_changes(body=lines + code.statements("return {}\n".format(", ".join(names))))
    source = "return {}, {}\n".format(code.bare_text(returned[0].value), ", ".join(names))
    lines[-1] = lines[-1].with_changes(body=code.statements(source)[0].body)
    return block.with_changes(body=lines)
