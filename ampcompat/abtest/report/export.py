"""Exports of a report: losses, scales and metrics as CSV, or as event files for TensorBoard."""

import csv
import importlib.util
import io
import os

from ..judging import curves

NO_TENSORBOARD = "--tensorboard needs the package tensorboard: pip install tensorboard"


def rows(report):
    """Yield (level, repeat, series, step, value) of every loss, scale and metric."""
    for level, repeat, run in report.every_run():
        for name in curves.series_names(run):
            for step, value in curves.points(run, name):
                yield level, repeat, "/".join(map(str, name)), step, value
        for step, loss_id, value in run.scale:
            yield level, repeat, f"scale/{loss_id}", step, value


def to_csv(report):
    """Return a table with the columns level, repeat, series, step and value as CSV text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["level", "repeat", "series", "step", "value"])
    writer.writerows(rows(report))
    return text.getvalue()


def has_tensorboard():
    """Return whether event files can be written: torch's writer needs the package ``tensorboard``."""
    return importlib.util.find_spec("tensorboard") is not None


def to_tensorboard(report, folder):
    """Write event files: one folder per level and repeat, so that TensorBoard draws them in the same charts."""
    from torch.utils.tensorboard import SummaryWriter

    writers = {}
    for level, repeat, series, step, value in rows(report):
        if (level, repeat) not in writers:
            writers[level, repeat] = SummaryWriter(os.path.join(folder, f"{level}-{repeat}"))
        writers[level, repeat].add_scalar(series, value, step)
    for writer in writers.values():
        writer.close()
