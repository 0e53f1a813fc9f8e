"""Faults of models, of casts and of what restores them, for ``mutations.py``: see ``seeded_faults``."""

from helpers.seeded_faults import CLOSING, RESUMED, Fault

CASTS = "casting/test_conformance.py"
CACHED = "casting/test_weight_cache.py"

# fmt: off
FAULTS_OF_CASTS = [
    # -- models --------------------------------------------------------------------------------------------------------
    Fault("keep_batchnorm_fp32 ignored", "Preparation._cast_weights", "if policy.keep_batchnorm_fp32 else []",
          "if not policy else []", "specification/test_initialize.py"),
    Fault("keep_fp32 ignored", "Preparation._cast_weights", "self._cast.cast(modules, inner + norms)",
          "self._cast.cast(modules, norms)", "specification/test_kept_layers.py"),
    Fault("missed restore of the weights' dtype", "ModelCast._tensors_of",
          "self._patches.defer_for(module, _restore_dtypes, weakref.ref(module), *before, self.originals)", "pass",
          CLOSING),
    Fault("missed restore after a failed initialize", "Preparation.undo", "(self._patches.undo, (self._since,)), ", "",
          "specification/test_data_safety.py"),
    Fault("inputs of forward not cast", "ForwardConversion.run",
          "cast_floating(value, self.input_dtype) for value in args", "value for value in args",
          "specification/test_forward_casts.py"),
    Fault("output of forward not cast", "ForwardConversion.run", "output if self.output_dtype is None else",
          "output if True else", "specification/test_forward_casts.py"),
    Fault("hook of the state dict not removed", "state_dict.hook",
          "patches.register(module._register_state_dict_hook, widen, owner=module)",
          "module._register_state_dict_hook(widen)", CLOSING),
    Fault("half checkpoint", "SessionMasters.widened",
          "return kept_where_equal(value_of(master).to(value.device), value)", "return value.to(master.dtype)",
          RESUMED),
    Fault("loaded values rounded on the way to the master", "SessionMasters.load",
          "data_of(master).copy_(value)", "data_of(master).copy_(value.half())", RESUMED),
    # -- casts ---------------------------------------------------------------------------------------------------------
    Fault("stale cast", "WeightCache.cast", "state = (version,", "state = (0,", CACHED),
    Fault("copies outlive the forward pass", "InForward.__exit__", "local.copies = self._copies", "pass", CACHED),
    Fault("cast without gradient reused with gradients", "WeightCache.cast",
          "weight.requires_grad, _grad_is_enabled(),", "weight.requires_grad, True,", CACHED),
    Fault("swapped dtypes", "ArgumentCaster.to_high", "return value.to(self.high) if value.dtype in self.narrow",
          "return value.to(self.low) if value.dtype in self.narrow", CASTS),
    Fault("promotion to the narrowest dtype", "widest", "BYTES[dtype] > BYTES[result]", "BYTES[dtype] < BYTES[result]",
          CASTS),
    Fault("emulated half not rounded", "round_results",
          "return _cast(value, low) if value.is_floating_point() else value", "return value",
          "casting/test_half_emulation.py"),
    Fault("casts stay on in an optimizer's step", "OptimizerRecord.run", "backend.paused(), ", "",
          "specification/test_optimizer_calls.py casting/test_regions.py"),
    Fault("wrong dtype of a level", "opt_levels", "cast_model_type=torch.bfloat16", "cast_model_type=torch.float16",
          "specification/test_initialize.py"),
    # -- what holds it together ----------------------------------------------------------------------------------------
    Fault("patches undone in the wrong order", "PatchStack._run", "for entry in reversed(list(self._entries.values()))",
          "for entry in list(self._entries.values())", "test_patching.py"),
    Fault("inherited attribute not deleted by undo", "patching._restore",
          "elif name in vars(owner):\ndelattr(owner, name)", "", "test_patching.py"),
    Fault("integer tensors cast", "_is_meant", "return tensor.is_floating_point() if sources is None",
          "return True if sources is None", "test_containers.py"),
]
# fmt: on
