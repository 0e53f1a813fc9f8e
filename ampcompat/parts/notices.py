"""Everything that a user reads while training.

Owns: verbosity and rank; the only ``print`` of the library.
Must not touch: what is being trained.
The surprise: a notice is an ordinary print, as scripts and log scrapers of Apex expect, on rank 0 only.
"""

import torch


def is_first_rank():
    """Return whether this process speaks: rank 0, or no process group at all."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


class Notices:
    """Speaks at a verbosity: 0 says nothing, 1 what a user wants to know, 2 more than that."""

    def __init__(self, verbosity=1):
        self.verbosity = verbosity
        self._said = set()

    def say(self, text, verbosity=1):
        """Print ``text`` on rank 0 if the verbosity is at least that much."""
        if self.verbosity >= verbosity and is_first_rank():
            print(text, flush=True)

    def say_once(self, key, text):
        """Print ``text`` the first time that ``key`` comes by."""
        if key not in self._said:
            self._said.add(key)
            self.say(text)

    def selected(self, defaults, policy):
        """Announce a level: its description, its defaults, the options after the overrides."""
        self.say("Selected opt level {}: {}".format(policy.opt_level, policy.description))
        self.say("Defaults of this level:")
        self._options(defaults)
        self.say("Options after overrides:")
        self._options(policy)

    def _options(self, policy):
        for name, value in policy.options.items():
            self.say("{:22} : {}".format(name, value))

    def overflow(self, loss_id, scaler):
        """Say that a step is skipped, in Apex's words, which scripts and log scrapers know."""
        outcome = "reducing loss scale to {}" if scaler.dynamic else "whose static scale stays {}"
        outcome = outcome.format(scaler.loss_scale())
        self.say("Gradient overflow.  Skipping step, loss scaler {} {}".format(loss_id, outcome))

    def foreign(self, adapter):
        """Say that an optimizer steps on gradients of a pass that it was not part of."""
        self.say_once(
            ("foreign", id(adapter)),
            "ampcompat: {} steps on gradients that came, scaled by {:g}, from a backward pass to whose amp.scale_loss it "
            "was not given. Give it there too, or call its zero_grad() before its own backward pass.".format(
                type(adapter.optimizer).__name__, float(adapter.foreign_scale)
            ),
        )

    def adopted(self, optimizer):
        """Say that an optimizer came to ``scale_loss`` without ``initialize``."""
        self.say(
            "ampcompat: {} did not go through amp.initialize; it is taken in now. Pass it to amp.initialize, so that its "
            "masters start from the float32 weights.".format(type(optimizer).__name__)
        )

    def other_policy(self, policy, before):
        """Say that a later ``initialize`` asks for something else."""
        self.say(
            "ampcompat: initialize was called with {} after {}. Earlier models keep what they were initialized with; casts "
            "around functions hold for the whole process.".format(policy.opt_level, before.opt_level)
        )

    def scaler_counts(self, found, used):
        """Say that a checkpoint has more or fewer loss scalers than there are."""
        rest = "the rest of it is left out" if found > used else "the others start afresh"
        self.say("Warning: the amp state dict has {} loss scalers, and {} are in use: {}.".format(found, used, rest))
