"""A/B runs: the opt levels of one training side by side.

Owns: the door: ``Report`` and the records in it.
Must not touch: arguments, terminals and exit codes, which are the desk's.
The surprise: reports can be read and drawn without torch.
"""

from .records import Finding, Memory, Report, Run

__all__ = ["Finding", "Memory", "Report", "Run"]
