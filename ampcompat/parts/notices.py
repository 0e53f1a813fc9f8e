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
