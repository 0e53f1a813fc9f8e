"""Adds the observers of ``run --op-stats`` and ``run --stats-every`` to a session."""

from ...errors import AmpValueError
from .op_stats import OpStats
from .tensor_statistics import TensorStatistics


def add_observers(session, op_stats=False, op_stats_file=None, stats_every=None, stats_file=None):
    """Add observers to a session that has no models yet; return a function that ends those that are active, or None.

    Args:
        op_stats: print how often each function of torch ran in which dtype, and why.
        op_stats_file: a JSON file for these counts.
        stats_every: measure tensors in every n-th optimizer step.
        stats_file: the CSV file for these statistics.

    Raises:
        AmpError: this torch or this Python does not have a feature that one of them needs.
        AmpValueError: ``stats_every`` is not positive, or it is passed without a file, or a file without it.
    """
    if stats_every is None and stats_file:
        raise AmpValueError("Statistics of tensors are written every stats_every steps, which is missing.")
    if stats_every is not None:
        if int(stats_every) < 1:
            raise AmpValueError(f"stats_every={stats_every}: expected a number of steps of at least 1.")
        if not stats_file:
            raise AmpValueError("stats_every needs a file to write to: stats_file.")
        session.observers.append(TensorStatistics(int(stats_every), stats_file))
    if op_stats or op_stats_file:
        observer = OpStats(op_stats_file, prints=bool(op_stats))
        session.observers.append(observer)
        observer.start(session)
        return observer.cancel
    return None
