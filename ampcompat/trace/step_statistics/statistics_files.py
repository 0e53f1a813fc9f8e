"""The output of tensor statistics: a CSV file, or TensorBoard events; with several ranks, one for each."""

import csv
import os

import torch

from ...errors import AmpError
from ...support.torch_compat.thread_context import world_size
from ..values import SUMMARY
from .tensor_statistics import COLUMNS

NO_TENSORBOARD = (
    "Statistics for TensorBoard (--stats-tensorboard) need the package tensorboard, which is not installed ({}). "
    "Install it (pip install tensorboard), or write a CSV file: --stats-file FILE.csv."
)


class CsvFile:
    """Rows of statistics as CSV. The file is created at the first row, since the ranks are only known then.

    Args:
        path: the file; with several ranks, the rank is put before the extension: ``stats.rank1.csv``.
    """

    def __init__(self, path):
        self._path = path
        self._file = None

    def write(self, step, rows):
        """Append rows, dicts of ``COLUMNS``."""
        if self._file is None:
            root, ending = os.path.splitext(self._path)
            self._file = open(f"{root}{_rank('.rank')}{ending}", "w", encoding="utf-8", newline="")
            self._rows = csv.DictWriter(self._file, COLUMNS, lineterminator="\n")
            self._rows.writeheader()
        for row in rows:
            self._rows.writerow(
                {name: f"{value:.6g}" if type(value) is float else value for name, value in row.items()}
            )
        self._file.flush()

    def close(self):
        """Close the file."""
        if self._file is not None:
            self._file.close()


class TensorBoardEvents:
    """Rows of statistics as TensorBoard scalars: ``max_abs/gradient/layer1.weight``, by optimizer step.

    Args:
        folder: the log directory; with several ranks, each has a folder in it.

    Raises:
        AmpError: TensorBoard is not installed.
    """

    def __init__(self, folder):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except (ImportError, AttributeError) as error:  # AttributeError: some torch with a newer setuptools
            raise AmpError(NO_TENSORBOARD.format(error)) from error
        self._make, self._folder, self._writer = SummaryWriter, folder, None

    def write(self, step, rows):
        """Add scalars."""
        if self._writer is None:
            self._writer = self._make(os.path.join(self._folder, _rank("rank")))
        for row in rows:
            name = ".".join(filter(None, [row["module"], row["tensor"]]))
            prefix = f"model{row['model']}." if row["model"] else ""
            suffix = f"#{row['call']}" if row["call"] else ""
            for each in SUMMARY:
                self._writer.add_scalar(f"{each}/{row['kind']}/{prefix}{name}{suffix}", row[each], step)
        self._writer.flush()

    def close(self):
        """Close the events."""
        if self._writer is not None:
            self._writer.close()


def _rank(prefix):
    """Return the prefix and the rank of this process, or "" if there is only one process."""
    return f"{prefix}{torch.distributed.get_rank()}" if world_size() > 1 else ""
