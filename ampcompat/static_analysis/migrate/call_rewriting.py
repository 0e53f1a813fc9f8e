"""Rewrites the calls of Apex in a script, one by one: those with an equivalent in torch."""

import libcst as cst

from ..reading.calls import INITIALIZE
from . import syntax
from .precision_setup import PrecisionSetup

PARAMS = 'p for group in {}.param_groups for p in group["params"]'
_DDP = "torch.nn.parallel.DistributedDataParallel"
#: Full name -> (torch's name, the keywords that torch also has).
SAME = {
    "apex.parallel.DistributedDataParallel": (_DDP, ()),
    "apex.parallel.distributed.DistributedDataParallel": (_DDP, ()),
    "apex.parallel.convert_syncbn_model": ("torch.nn.SyncBatchNorm.convert_sync_batchnorm", ("process_group",)),
    "apex.parallel.SyncBatchNorm": (
        "torch.nn.SyncBatchNorm",
        ("num_features", "eps", "momentum", "affine", "track_running_stats", "process_group"),
    ),
}
_NORMS = {"FusedLayerNorm": "LayerNorm", "MixedFusedLayerNorm": "LayerNorm"}
_NORMS.update({"FusedRMSNorm": "RMSNorm", "MixedFusedRMSNorm": "RMSNorm"})
for _theirs, _ours in _NORMS.items():
    for _module in ("apex.normalization.", "apex.normalization.fused_layer_norm."):
        SAME[_module + _theirs] = ("torch.nn." + _ours, ("normalized_shape", "eps", "elementwise_affine"))

_OTHER_ARGUMENTS = "it has arguments that torch does not have; write {}"
_ADAM_BY_HAND = _OTHER_ARGUMENTS.format("torch.optim.AdamW(...), whose weight_decay is 0.01 by default and Apex's 0")
#: Full name -> what to write if a use could not be rewritten.
BY_HAND = {name: _OTHER_ARGUMENTS.format(theirs + "(...)") for name, (theirs, _) in SAME.items()}
BY_HAND.update({name: _ADAM_BY_HAND for name in ("apex.optimizers.FusedAdam", "apex.optimizers.fused_adam.FusedAdam")})
for _name in ("apex.optimizers.FusedSGD", "apex.optimizers.fused_sgd.FusedSGD"):
    BY_HAND[_name] = _OTHER_ARGUMENTS.format("torch.optim.SGD(...)")

_ADAM = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")
_SGD = ("params", "lr", "momentum", "dampening", "weight_decay", "nesterov")
#: Arguments of Apex that do not change the result.
_HOW = {"bias_correction": "True", "set_grad_none": None, "materialize_master_grads": None, "memory_efficient": None}
_HOW.update({"delay_allreduce": None, "message_size": None, "channel_last": None, "capturable": None})
_HOW.update({"shared_param": None, "num_allreduce_streams": None, "retain_allreduce_buffers": None})


def torch_call(call, full_name):
    """Return torch's equivalent of a call of Apex, or None if there is none."""
    if full_name in SAME:
        name, known = SAME[full_name]
        return _renamed(call, name, known)
    if full_name in ("apex.optimizers.FusedAdam", "apex.optimizers.fused_adam.FusedAdam"):
        mode = syntax.argument(call, 5, "adam_w_mode")
        if mode is not None and syntax.text(mode) not in ("True", "False"):
            return None
        name = "torch.optim.Adam" if mode is not None and syntax.text(mode) == "False" else "torch.optim.AdamW"
        return _optimizer(call, name, _ADAM, {"weight_decay": "0.0"})  # AdamW's own default is 0.01
    if full_name in ("apex.optimizers.FusedSGD", "apex.optimizers.fused_sgd.FusedSGD"):
        return _optimizer(call, "torch.optim.SGD", _SGD, {})
    if full_name in ("apex.fp16_utils.to_python_float", "apex.fp16_utils.fp16util.to_python_float"):
        return cst.parse_expression(f"({syntax.text(call.args[0].value)}).item()")
    return None


def _renamed(call, name, known):
    """Return a call by another name, without the arguments that do not change the result; None if there are others."""
    kept = []
    for each in call.args:
        keyword = each.keyword.value if each.keyword is not None else None
        if each.star or (keyword is not None and keyword not in known and not _is_how(keyword, each.value)):
            return None
        kept += [each] if keyword is None or keyword in known else []
    return call.with_changes(func=cst.parse_expression(name), args=syntax.listed(kept))


def _optimizer(call, name, known, defaults):
    own = [each for each in call.args if each.keyword is not None and each.keyword.value == "adam_w_mode"]
    positional = [each for each in call.args if each.keyword is None]
    new = _renamed(call.with_changes(args=[each for each in call.args if each not in own]), name, known)
    if new is None or len(positional) > 2:  # the order of further arguments differs
        return None
    given = {each.keyword.value for each in new.args if each.keyword is not None}
    extra = [f"{key}={value}" for key, value in defaults.items() if key not in given]
    extra.append("fused=torch.cuda.is_available()")
    added = cst.parse_expression("f({})".format(", ".join(extra))).args
    args = [each if isinstance(each.comma, cst.Comma) else each.with_changes(comma=syntax.COMMA) for each in new.args]
    return new.with_changes(args=args + list(added))


def _is_how(keyword, value):
    return keyword in _HOW and _HOW[keyword] in (None, syntax.text(value))


class CallRewriter(syntax.PlacedTransformer):
    """Rewrites calls, given a script's ``ScriptFacts``.

    Args:
        facts: the ``ScriptFacts``.

    Attributes:
        loads_state: whether ``amp.load_state_dict`` was called.
    """

    def __init__(self, facts):
        super().__init__()
        self.facts, self.names, self.loads_state = facts, facts.names, False
        self._precision, self._parents = None, {}

    def visit_Module(self, node):
        """Visit all calls of ``amp.initialize`` first, since functions above them depend on them."""
        calls = [call for call in syntax.calls(node) if self._full_name(call.func) in INITIALIZE]
        uses = {self._full_name(call.func) for call in syntax.calls(node)}
        self._precision = PrecisionSetup(calls, uses, self.facts)
        self._parents = {child: each for each in syntax.walk(node) for child in syntax.children(each)}

    def visit_SimpleStatementLine(self, node):
        """Enter only statements that call Apex."""
        return any(self._full_name(call.func) for call in syntax.calls(node))

    def _full_name(self, node):
        return self.facts.source.names.resolve(syntax.name_of(node))

    def leave_Call(self, original_node, updated_node):
        """Replace the calls that have an equivalent in torch."""
        full_name = self._full_name(original_node.func)
        if full_name is None:
            return updated_node
        if full_name == "apex.amp.master_params":
            every = f"[{PARAMS.format(syntax.text(updated_node.args[0].value))}]"
            return cst.parse_expression(self.facts.params_at.get(self.place(original_node), every))
        if full_name == "apex.amp.state_dict":
            return cst.parse_expression(self.names.scaler + ".state_dict()")
        if full_name == "apex.amp.load_state_dict":
            self.loads_state = True
            scaler = cst.Arg(cst.parse_expression(self.names.scaler))
            args = [scaler.with_changes(comma=syntax.COMMA), *updated_node.args]
            return updated_node.with_changes(func=cst.parse_expression(self.names.loader), args=args)
        if full_name in ("apex.amp.disable_casts", "apex.amp.handle.disable_casts"):
            return cst.parse_expression(f"torch.autocast({self.names.device}, enabled=False)")
        new = torch_call(updated_node, full_name)
        return updated_node if new is None else new.with_changes(func=self._short(new.func))

    def _short(self, node):
        """Return ``nn.LayerNorm`` for ``torch.nn.LayerNorm`` if the script has ``import torch.nn as nn``."""
        module, _, name = (syntax.name_of(node) or "").rpartition(".")
        short = self.facts.short_names.get(module) if module in ("torch.nn", "torch.optim") else None
        return cst.parse_expression(f"{short}.{name}") if short else node

    def _around(self, node):
        """Yield the compound statements around a node, the innermost first."""
        while not isinstance(node, cst.Module):
            node = self._parents[node]
            if isinstance(node, syntax.COMPOUND):
                yield node
