"""Apex's ``Properties`` and its level objects ``O0`` … ``O5``, as views of ``opt_levels``.

As in Apex a level is called with a ``Properties`` object and writes its defaults into it.
"""

from ...opt_levels import OPT_LEVELS, resolve


class Properties:
    """The options of a level. Attributes are checked against the level as they are set."""

    def __init__(self):
        object.__setattr__(self, "options", {"enabled": False, "opt_level": None})

    def __getattr__(self, name):
        options = self.__dict__.get("options", {})
        if name in options:
            return options[name]
        raise AttributeError(f"Properties has no option {name!r}")

    def __setattr__(self, name, value):
        if name in self.options and name not in ("enabled", "opt_level") and value is not None:
            _, policy = resolve(self.options["opt_level"], {name: value})
            value = getattr(policy, name)
        self.options[name] = value


class LevelObject:
    """One opt level: ``brief`` describes it, a call fills ``Properties`` with its defaults."""

    def __init__(self, row):
        self._defaults = row
        self.brief = f"{row.opt_level}:  {row.description}"
        self.more = row.description

    def __call__(self, properties):
        """Write the level's defaults into ``properties`` and return them."""
        properties.options.clear()
        properties.options.update(self._defaults.options)
        return properties


opt_levels = {name: LevelObject(row) for name, row in OPT_LEVELS.items()}
O0, O1, O2, O3, O4, O5 = (opt_levels[name] for name in ("O0", "O1", "O2", "O3", "O4", "O5"))
