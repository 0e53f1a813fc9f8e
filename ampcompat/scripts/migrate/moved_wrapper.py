"""A model that is wrapped for data parallelism before its optimizer is created: the wrapper is moved below."""

import ast

from ..model.bindings import dotted
from .trained_models import PARALLEL

#: Attributes of a wrapper that may be read before it is moved, since they are those of the wrapped model.
_SAME = ("parameters",)


class MovedWrapper:
    """A statement such as ``model = DistributedDataParallel(model)`` that is moved after ``amp.initialize``.

    Args:
        wraps: the assignments of wrappers before the last optimizer is created.
        block: the statements that contain the creation of the optimizers.
        last: the place of the last of these in the block.
        trained: ``TrainedModels``.
        names: the ``FullNames`` of the script.

    Attributes:
        statement: the statement of the block that is moved, or None if it cannot be moved reliably.
        renamed: (line, column) of a name -> the name of the model that replaces it, since the wrapper comes later.
        models: the name of a wrapper -> that of the model in it.
    """

    def __init__(self, wraps, block, last, trained, names):
        self._of, self._names = trained.variables.of, names
        self.renamed, self.models = {}, {}
        holders = [each for each in block[:last] if any(node in wraps for node in ast.walk(each))]
        self.statement = holders[0] if len(holders) == 1 and self._can_move(holders[0], wraps, block, last) else None

    def _can_move(self, statement, wraps, block, last):
        parts = statement.body + statement.orelse if isinstance(statement, ast.If) else [statement]
        if not all(each in wraps and self._is_plain(each) for each in parts):
            return False
        for each in parts:
            self.models[each.targets[0].id] = each.value.args[0].id
        is_conditional = statement is not parts[0]
        if is_conditional and any(name != model for name, model in self.models.items()):
            return False  # if the condition is false, the wrapper's name means something else
        following = block[block.index(statement) + 1 : last + 1]
        wrappers = {self._of(each.targets[0]) for each in parts}
        return self._are_alike(following, wrappers) and not self._change(following, statement)

    def _is_plain(self, assignment):
        """Return whether an assignment is ``name = Wrapper(model, …)``."""
        value = assignment.value
        is_wrapper = isinstance(value, ast.Call) and self._names.of(value.func) in PARALLEL and bool(value.args)
        return is_wrapper and len(assignment.targets) == 1 and all(
            isinstance(each, ast.Name) for each in (assignment.targets[0], value.args[0])
        )  # fmt: skip

    def _are_alike(self, statements, wrappers):
        """Return whether only attributes of the models are read from wrappers; note which names become the model's."""
        nodes = [node for each in statements for node in ast.walk(each)]
        same = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr in _SAME}
        for node in nodes:
            if isinstance(node, ast.Name) and self._of(node) in wrappers:
                if id(node) not in same:
                    return False
                if self.models[node.id] != node.id:
                    self.renamed[node.lineno, node.col_offset] = self.models[node.id]
        return True

    def _change(self, statements, moved):
        """Return whether statements change a variable that the moved statement reads."""
        read = {self._of(node) for node in ast.walk(moved) if isinstance(node, ast.Name)}
        nodes = [node for each in statements for node in ast.walk(each)]
        stored = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store) and dotted(node)]
        return any(self._of(node).partition(".")[0] in read or self._of(node) in read for node in stored)
