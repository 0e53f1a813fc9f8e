"""Makes a recorded run refuse to load a checkpoint that another run of the series has saved.

Scripts that resume save a checkpoint under the same name in every run. A run that continues from another run's
checkpoint cannot be compared.
"""

import functools
import os
import sys
import time

import torch

from ...errors import AmpError
from ..planned_run import own_files
from . import kept_files


class Checkpoints:
    """Records the files that a run saves after its first step, and refuses those of other runs before it.

    A file that another run saved before its first step, such as a preprocessed dataset, does not count as a checkpoint;
    neither does one that was written after this run began.

    Args:
        recorder: the ``Recorder`` of the run; ``loaded`` gets the files that are loaded before the first step.
        others: ``{path: name of the run that saved it}``.
    """

    def __init__(self, recorder, others):
        self._recorder = recorder
        self._others = dict(others)
        self._began = time.time()
        self._recorded = set()

    def watch(self, patches):
        """Watch ``torch.load``, and what ``kept_files`` sees of ``torch.save``, until ``patches`` is undone."""
        kept_files.call_after_save(self._saved, patches)
        patches.set(torch, "load", self._watched_load(torch.load))

    def _saved(self, path):
        if path not in self._recorded and self._has_stepped():
            self._recorded.add(path)
            self._recorder.record({"saved": path})

    def _watched_load(self, load):
        @functools.wraps(load)
        def check_and_load(f, *args, **kwargs):
            path = kept_files.path_of(f)
            if path is not None and not self._has_stepped():
                if path in self._others and os.path.getmtime(path) < self._began:
                    raise AmpError(_refusal(path, self._others[path]))
                self._recorder.loaded.append(path)
            return load(f, *args, **kwargs)

        return check_and_load

    def _has_stepped(self):
        return bool(self._recorder.run.step_seconds)


def _refusal(path, other):
    return (
        f"this run would continue from {os.path.relpath(path)}, the checkpoint of the run {other}, and could not be "
        f"compared. Give each run its own files: {own_files(sys.argv, [path])}; or start the script without resuming"
    )
