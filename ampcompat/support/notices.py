"""The messages that are printed during training, by verbosity and on rank 0 only.

They are printed to stdout, as scripts and log parsers written for Apex expect.
"""

import torch

from .torch_compat.thread_context import in_process_group
from .torch_compat.torch_names import dtype_name


def is_first_rank():
    """Return whether this process prints: it is rank 0, or there is no process group."""
    return not in_process_group() or torch.distributed.get_rank() == 0


class Notices:
    """Prints messages by verbosity: 0 none, 1 those that a user needs to know, 2 more."""

    def __init__(self, verbosity=1):
        self.verbosity = verbosity
        self._said = set()

    def say(self, text, verbosity=1):
        """Print ``text`` on rank 0 if the verbosity is at least ``verbosity``."""
        if self.verbosity >= verbosity and is_first_rank():
            print(text, flush=True)

    def say_once(self, key, text):
        """Print ``text`` at the first call with this ``key``."""
        if key not in self._said:
            self._said.add(key)
            self.say(text)

    def selected(self, defaults, policy):
        """Print the selected level; with ``defaults``, also these and the options after overrides."""
        self.say(f"Selected optimization level {policy.opt_level}: {policy.description}")
        if defaults is None:
            return
        self.say("Defaults of this level:")
        self._options(defaults)
        self.say("Options after overrides:")
        self._options(policy)

    def _options(self, policy):
        for name, value in policy.options.items():
            self.say(f"{name:22} : {value}")

    def level_given_as_enabled(self, value, policy):
        """Print that a level was passed by position as ``enabled``, which any string turns on."""
        self.say(
            f"ampcompat: {value!r} was passed as enabled, the third argument of amp.initialize, and the level is "
            f"{policy.opt_level}. Write opt_level={value!r}."
        )

    def overflow(self, loss_id, scaler):
        """Print that a step is skipped, in Apex's words, which scripts and log parsers search for."""
        outcome = "reducing loss scale to {}" if scaler.dynamic else "whose static scale stays {}"
        outcome = outcome.format(scaler.loss_scale())
        self.say(f"Gradient overflow.  Skipping step, loss scaler {loss_id} {outcome}")

    def scaled_gradients_used(self, optimizer, scale):
        """Print that an optimizer steps with scaled gradients of a ``scale_loss`` block that it was not passed to."""
        self.say_once(
            ("scaled gradients", id(optimizer)),
            f"ampcompat: {type(optimizer).__name__}.step() uses gradients that are scaled by {float(scale):g}: they "
            "are from a backward pass whose amp.scale_loss did not get this optimizer. Pass it there too, or call its "
            "zero_grad() before its own backward pass.",
        )

    def stepped_within_block(self, optimizer):
        """Print that an optimizer steps before its ``scale_loss`` block has unscaled the gradients."""
        self.say_once(
            "stepped within block",
            f"ampcompat: {type(optimizer).__name__}.step() was called within its amp.scale_loss block, where gradients "
            "are still scaled. Call it after the block.",
        )

    def unscaled_gradients_used(self, optimizer):
        """Print that an optimizer steps with half gradients that were never scaled."""
        self.say_once(
            "unscaled gradients",
            f"ampcompat: {type(optimizer).__name__}.step() uses half gradients of a backward pass outside of "
            "amp.scale_loss. They are not scaled, so small ones may have become 0. Write: with amp.scale_loss(loss, "
            "optimizer) as scaled_loss: scaled_loss.backward()",
        )

    def optimizer_added(self, optimizer):
        """Print that an optimizer was passed to ``scale_loss`` but not to ``initialize``."""
        self.say(
            f"ampcompat: {type(optimizer).__name__} was not passed to amp.initialize and is initialized now. Pass it "
            "to amp.initialize, so that its masters start from the float32 weights."
        )

    def policy_changed(self, policy, before):
        """Print that a later ``initialize`` has other options."""
        self.say(
            f"ampcompat: initialize was called with {policy.opt_level} after {before.opt_level}. Each model computes "
            "at its own level. Outside of models, functions cast if any of the levels is O1 or O4."
        )

    def half_model(self, dtype, policy):
        """Print which precision the initial weights of a half model have."""
        name = dtype_name(dtype)
        if policy.casts_model and not policy.master_weights:
            kept = f"{policy.opt_level} has no float32 weights"
        else:
            kind = "master weights" if policy.master_weights else "weights"
            kept = f"its float32 {kind} start from these values, with the precision of {name}"
        self.say(
            f"ampcompat: a model has {name} weights: {kept}. Load the checkpoint in float32 to start from exact ones."
        )

    def options_ignored(self, names):
        """Print which options a second ``initialize`` of the same models and optimizers does not change."""
        self.say(
            "ampcompat: initialize was called again with the same models and optimizers. These options are ignored: "
            "{}. Pass them to the first call.".format(", ".join(names))
        )

    def scaler_counts(self, found, used):
        """Print that a checkpoint has more or fewer loss scalers than are in use."""
        rest = "the others in the checkpoint are ignored" if found > used else "the others keep their initial state"
        self.say(f"Warning: the amp state dict has {found} loss scalers, and {used} are in use: {rest}.")
