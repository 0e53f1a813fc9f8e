"""Adds the observers that the command line asks for to a session."""

from .op_stats import OpStats


def add_observers(session, options):
    """Add observers to a session that has no models yet.

    Args:
        options: a dict, of ``process_state.run_options()``.

    Raises:
        AmpError: this torch, or this Python, lacks what one of them needs.
    """
    if options.get("op_stats") or options.get("op_stats_file"):
        observer = OpStats(options.get("op_stats_file"), prints=bool(options.get("op_stats")))
        session.observers.append(observer)
        observer.start(session)
