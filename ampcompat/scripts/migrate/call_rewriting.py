"""Rewrites the calls of Apex in a script, one by one."""

import libcst as cst

from ..model.calls import INITIALIZE
from . import syntax
from .apex_to_torch import torch_call
from .precision_variables import PrecisionSetup

PARAMS = 'p for group in {}.param_groups for p in group["params"]'


class CallRewriter(cst.CSTTransformer):
    """Rewrites calls, given a script's ``ScriptFacts``.

    Args:
        facts: the ``ScriptFacts``.
        shared: whether functions get ``autocast``, a function, instead of its settings.

    Attributes:
        loads_state: whether ``amp.load_state_dict`` was called.
    """

    def __init__(self, facts, shared):
        super().__init__()
        self.facts, self.names, self.loads_state = facts, facts.names, False
        self._shared, self._precision, self._module = shared, None, None
        self._around = []  # the compound statements around the current one

    def visit_Module(self, node):
        """Visit all calls of ``amp.initialize`` first, since functions above them depend on them."""
        calls = [call for call in syntax.calls(node) if self._full_name(call.func) in INITIALIZE]
        uses = {self._full_name(call.func) for call in syntax.calls(node)}
        self._precision = PrecisionSetup(calls, uses, self.facts, self._shared)
        self._module = node

    def _full_name(self, node):
        return self.facts.source.names.resolve(syntax.name_of(node))

    def leave_Call(self, original_node, updated_node):
        """Replace the calls that have an equivalent in torch."""
        full_name = self._full_name(original_node.func)
        if full_name is None:
            return updated_node
        if full_name == "apex.amp.master_params":
            return syntax.expression(self._params(syntax.text(updated_node.args[0].value)))
        if full_name == "apex.amp.state_dict":
            return syntax.expression(self.names.scaler + ".state_dict()")
        if full_name == "apex.amp.load_state_dict":
            self.loads_state = True
            scaler = cst.Arg(syntax.expression(self.names.scaler))
            args = [scaler.with_changes(comma=syntax.COMMA), *updated_node.args]
            return updated_node.with_changes(func=syntax.expression(self.names.loader), args=args)
        if full_name in ("apex.amp.disable_casts", "apex.amp.handle.disable_casts"):
            return syntax.expression(f"torch.autocast({self.names.device}, enabled=False)")
        new = torch_call(updated_node, full_name)
        return updated_node if new is None else new.with_changes(func=self._short(new.func))

    def _short(self, node):
        """Return ``nn.LayerNorm`` for ``torch.nn.LayerNorm`` if the script has ``import torch.nn as nn``."""
        module, _, name = (syntax.name_of(node) or "").rpartition(".")
        short = self.facts.short_names.get(module) if module in ("torch.nn", "torch.optim") else None
        return syntax.expression(f"{short}.{name}") if short else node

    def _params(self, optimizer):
        """Return the params of an optimizer, as source: ``model.parameters()`` if it is the same and accessible."""
        params = self.facts.made_from.get(optimizer, "")
        scopes = [each for each in self._around if isinstance(each, cst.FunctionDef)] + [self._module]
        if params and any(params.partition(".")[0] in syntax.bound_names(scope) for scope in scopes):
            return params
        return f"[{PARAMS.format(optimizer)}]"
