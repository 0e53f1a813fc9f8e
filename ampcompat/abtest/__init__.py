"""A/B runs: trains at several opt levels and compares losses, loss scales, speed and memory.

Reports can be read and drawn where torch is not installed; only ``compare`` imports it.
"""

from .report_data import Finding, Memory, Report, Run
from .comparison import compare
