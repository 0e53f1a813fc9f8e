import gc
import sys
import threading

import torch

from ampcompat.optimizers.written_params import Writes
from ampcompat.patching import PatchStack


def test_params_that_died_leave_no_notes():
    writes = Writes()
    with PatchStack() as patches:
        writes.open(patches)
        param = torch.nn.Parameter(torch.ones(2))
        writes.watch([param])
        alias = param.data
        assert writes and param in writes
        del param
        gc.collect()
        assert not writes
        assert alias.tolist() == [1.0, 1.0]
        patches.undo()


def test_params_are_watched_while_another_thread_reads_their_data():
    writes, errors, ends = Writes(), [], threading.Event()
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(300)]

    def read():
        while not ends.is_set():
            try:
                for param in params:
                    param.data
                    writes.clear([param])
            except RuntimeError as error:
                errors.append(error)

    with PatchStack() as patches:
        writes.open(patches)
        writes.watch(params)
        reader, interval = threading.Thread(target=read), sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            reader.start()
            for _ in range(300):
                writes.watch(params[:1])
        finally:
            sys.setswitchinterval(interval)
            ends.set()
            reader.join()
            patches.undo()
    assert errors == []
