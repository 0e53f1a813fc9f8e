"""The code that stands in for ``amp.initialize``: a GradScaler and a flag, set up as the call asked for."""

import libcst as cst

from . import code

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


class Setup:
    """One call of ``amp.initialize``.

    Attributes:
        problem: why it cannot be rewritten, or None.
        notes: what changes.
        dtype: the dtype of autocast, as source.
    """

    def __init__(self, call, names):
        self._call, self._names, self.notes = call, names, []
        self._level = code.argument(call, 3, "opt_level")
        literal = "O1" if self._level is None else code.text(self._level).strip("\"'")
        self._literal = literal if literal in _FLOAT16 + _BFLOAT16 + ("O0",) else None
        self.dtype = "torch.bfloat16" if self._literal in _BFLOAT16 else "torch.float16"
        self.problem = self._find_problem()
        if self._literal in _NOTES:
            self.notes.append(_NOTES[self._literal])
        if isinstance(code.argument(call, 2, "enabled"), cst.SimpleString):
            self.notes.append("the third argument is enabled, not opt_level: the level is O1 if no other is given")
        if self._literal is None:
            self.notes.append(
                "the level is known at run time only: O0 switches autocast off, every other level means autocast with "
                "float16 and float32 weights"
            )
        for name in ("min_loss_scale", "max_loss_scale"):
            if code.argument(call, 99, name) is not None:
                self.notes.append("{} has no counterpart in GradScaler".format(name))

    def _find_problem(self):
        keywords = [each.keyword.value for each in self._call.args if each.keyword is not None]
        unknown = [each for each in keywords if each not in _KNOWN]
        if any(each.star for each in self._call.args):
            return "its arguments are in a dict or list"
        return "no counterpart in torch.amp for {}".format(", ".join(unknown)) if unknown else None

    def lines(self):
        """Return the statements in place of the call, as source."""
        on = self._condition()
        use, scaler = self._names.flag, self._names.scaler
        options = [self._names.device, "enabled=" + (use if self.dtype == "torch.float16" else "False")]
        scale = code.argument(self._call, 8, "loss_scale")
        options += self._scale_options(scale) if scale is not None else []
        joined = ", ".join(options)
        if len(joined) > 80:
            joined = "\n" + "".join("    {},\n".format(option) for option in options)
        return "{} = {}\n{} = torch.amp.GradScaler({})\n".format(use, on, scaler, joined)

    def _condition(self):
        enabled = code.argument(self._call, 2, "enabled")
        is_on = enabled is None or code.text(enabled) == "True" or isinstance(enabled, cst.SimpleString)
        if self._literal == "O0":
            return "False"
        is_bool = isinstance(enabled, cst.Comparison)
        parts = [] if is_on else [code.operand(enabled) if is_bool else "bool({})".format(code.text(enabled))]
        if self._literal is None:
            parts.append('{} != "O0"'.format(code.operand(self._level)))
        return " and ".join(parts) or "True"

    def _scale_options(self, scale):
        """Return GradScaler's options for a static scale; for a value known at run time only, depending on it."""
        source = code.text(scale)
        if source.strip("\"'") in ("dynamic", "None"):
            return []
        static = _number(source.strip("\"'"))
        if static is not None:
            self.notes.append("a static loss scale is kept until a step overflows: GradScaler then skips it and halves")
            return ["init_scale={}".format(static), "growth_interval=2**31 - 1"]
        dynamic = 'in (None, "dynamic")'
        return [
            "init_scale=2.0**16 if {} {} else float({})".format(code.operand(scale), dynamic, source),
            "growth_interval=2000 if {} {} else 2**31 - 1".format(code.operand(scale), dynamic),
        ]

    def result(self):
        """Return what the call returned: its models and optimizers, as source."""
        models, optimizers = (code.argument(self._call, at, name) for at, name in enumerate(("models", "optimizers")))
        both = [code.text(each) for each in (models, optimizers) if each is not None]
        return ", ".join(both)


def _number(source):
    try:
        return float(source)
    except ValueError:
        return None
