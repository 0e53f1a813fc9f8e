"""Adds the observers of ``run --op-stats`` and ``run --stats-every`` to a session."""

from ...errors import AmpValueError
from .op_stats import OpStats
from .statistics_files import CsvFile, TensorBoardEvents
from .tensor_statistics import TensorStatistics


def add_observers(session, op_stats=False, op_stats_file=None, stats_every=None, stats_file=None, tensorboard=None):
    """Add observers to a session that has no models yet; return a function that ends what is active by now, or None.

    Args:
        op_stats: print how often each function of torch ran in which dtype, and why.
        op_stats_file: a JSON file with the same.
        stats_every: measure tensors in every so many optimizer steps.
        stats_file: the CSV file for that.
        tensorboard: a folder for events of TensorBoard.

    Raises:
        AmpError: this torch, or this Python, lacks what one of them needs.
        AmpValueError: ``stats_every`` is no positive number, or comes without a place to write to, or the reverse.
    """
    if stats_every is None and (stats_file or tensorboard):
        raise AmpValueError("Statistics of tensors are written every so many steps: stats_every is missing.")
    if stats_every is not None:
        if int(stats_every) < 1:
            raise AmpValueError(f"stats_every={stats_every}: expected a number of steps, from 1 up.")
        if not (stats_file or tensorboard):
            raise AmpValueError("stats_every needs a place to write to: stats_file, or stats_tensorboard.")
        writers = [CsvFile(stats_file)] if stats_file else []
        writers += [TensorBoardEvents(tensorboard)] if tensorboard else []
        session.observers.append(TensorStatistics(int(stats_every), writers))
    if op_stats or op_stats_file:
        observer = OpStats(op_stats_file, prints=bool(op_stats))
        session.observers.append(observer)
        observer.start(session)
        return observer.cancel
    return None
