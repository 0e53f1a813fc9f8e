"""``SeveralLevelsBackend``: the backends of O1 and O4 in one process.

The newest casts everywhere, the others only in the ``forward`` of models at their level, in whose thread it pauses.
"""

import functools
from contextlib import ExitStack, contextmanager

from .cast_backend import CastBackend


class SeveralLevelsBackend(CastBackend):
    """Backends with different dtypes, as one.

    Args:
        backends: the backends, not open; the last casts outside of models too.
    """

    name = "several"

    def __init__(self, backends):
        self._backends = backends
        self._newest = backends[-1]
        self.dtypes = self._newest.dtypes

    def open(self, patches, is_regional=False):
        for backend in self._backends:
            backend.open(patches, is_regional or backend is not self._newest)

    def entered(self, dtypes=None):
        if self._newest.is_paused():
            return None
        backend = self._newest if dtypes is None else [each for each in self._backends if each.dtypes == dtypes][0]
        if backend is self._newest and not any([each.active() for each in self._backends[:-1]]):
            return backend.entered()
        return self._alone(backend)

    @contextmanager
    def _alone(self, backend):
        with ExitStack() as contexts:
            for other in self._backends:
                if other is not backend:
                    contexts.enter_context(other.uncast_forward())
            contexts.enter_context(backend.region(keeps_copies=True))
            yield

    def _active(self):
        return next((backend for backend in self._backends if backend.active()), self._newest)

    def active(self):
        return self._active().active()

    @contextmanager
    def _in_all(self, name):
        with ExitStack() as contexts:
            for backend in self._backends:
                contexts.enter_context(getattr(backend, name)())
            yield

    def paused(self):
        return self._in_all("paused")

    def uncast_forward(self):
        return self._in_all("uncast_forward")

    def region(self):
        return self._newest.region()

    def set_devices(self, types):
        for backend in self._backends:
            backend.set_devices(types)

    def stop(self):
        for backend in self._backends:
            backend.stop()

    def bind_casts(self, function):
        for backend in self._backends:
            function = backend.bind_casts(function)
        return function

    def clear_cache(self):
        for backend in self._backends:
            backend.clear_cache()

    def wrap(self, function, rule):
        wrapped = {id(backend): backend.wrap(function, rule) for backend in self._backends}

        @functools.wraps(function)
        def by_active(*args, **kwargs):
            return wrapped[id(self._active())](*args, **kwargs)

        return by_active
