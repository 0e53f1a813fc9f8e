"""``ab --live``: serve the page of the report on 127.0.0.1 during the runs, with the standard library's HTTP server."""

import contextlib
import copy
import secrets
import socket
import sys
import threading
import time
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..abtest.recording.event_log import apply_event
from ..abtest.report.html import to_html
from ..abtest.report_data import Report, Run

#: How many seconds a browser that requested the page within as many seconds gets to fetch the last page.
LAST_FETCH = 5.0

#: How many seconds the server waits for a client to send or receive.
CLIENT_TIMEOUT = 10.0


class LivePage:
    """The report so far. It replaces the object that shows progress, and forwards everything to it.

    Args:
        progress: the object that shows progress.
        report: the ``Report`` with the runs that it already has.
        planned: the ``PlannedRun`` objects of the whole series.
    """

    def __init__(self, progress, report, planned):
        self._progress, self._lock, self._report = progress, threading.Lock(), report
        self._runs, self._ended = {each.label: [each.level, each.repeat, None] for each in planned}, set()
        for each in planned:
            run = report.runs.get(each.level)
            known = [] if run is None else [run] + run.repeats
            if each.repeat < len(known):
                self._runs[each.label][2] = copy.deepcopy(known[each.repeat])
        self.version, self.last_was_sent, self._is_last = 0, threading.Event(), False
        self.path = f"/{secrets.token_urlsafe(16)}/"  # other users of the machine do not know it
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._server.seen = -LAST_FETCH  # when a browser last requested the page
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __getattr__(self, name):
        return getattr(self._progress, name)

    @property
    def address(self):
        """The page's address, which has a random part."""
        return f"http://127.0.0.1:{self._server.server_port}{self.path}"

    def begin(self, label):
        """Note that a run begins; short timing runs, which come later, are not shown."""
        self._progress.begin(label)
        with self._lock:
            if label in self._runs and label not in self._ended:
                self._runs[label][2] = Run(status="interrupted", error="runs now")
                self.version += 1

    def update(self, label, event):
        """Add an event of a run."""
        self._progress.update(label, event)
        if event is None or label not in self._runs:
            return
        with self._lock:
            if label not in self._ended and self._runs[label][2] is not None:
                apply_event(self._runs[label][2], event)
                self.version += 1

    def end(self, label, run):
        """Add a run that has ended."""
        self._progress.end(label, run)
        if label in self._runs:
            with self._lock:
                if label not in self._ended:
                    self._runs[label][2] = copy.deepcopy(run)
                self._ended.add(label)
                self.version += 1

    def page(self):
        """Return (the page, whether it is the last one)."""
        with self._lock:
            if self._is_last:
                return to_html(self._report), True
            report = Report(environment=dict(self._report.environment), baseline=self._report.baseline)
            for level, repeat, run in self._runs.values():
                if run is not None:
                    report.add(level, repeat, run if repeat else copy.copy(run))
                    report.runs[level].repeats = list(report.runs[level].repeats)
            return to_html(report, live=self.version), False

    def close(self):
        """Show the whole report to a browser that has the page open, and stop the server."""
        with self._lock:
            self._is_last = True
            self.version += 1
        if time.monotonic() - self._server.seen < LAST_FETCH:
            self.last_was_sent.wait(LAST_FETCH)
        self._server.shutdown()
        self._server.server_close()
        self._server.close_connections()


class _Server(ThreadingHTTPServer):
    """Answers each request in a thread, and can close the connections of those that are not done."""

    def __init__(self, *args):
        super().__init__(*args)
        self._connections = weakref.WeakSet()

    def process_request(self, request, client_address):
        """Begin an answer."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def close_connections(self):
        """End the threads of slow clients."""
        for each in list(self._connections):
            with contextlib.suppress(OSError):  # it was closed
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        """Print nothing about a client that went away."""


def _handler(live):
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_TIMEOUT

        def do_GET(self):
            """Answer with the page, or with its version."""
            hosts = [f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")]
            if (self.headers.get("Host") or "").lower() not in hosts:  # another site's name for this address
                return self._answer(403, "text/plain", "not this host")
            self.server.seen = time.monotonic()
            if self.path == live.path + "version":
                return self._answer(200, "text/plain", str(live.version))
            if self.path == live.path:
                page, is_last = live.page()
                self._answer(200, "text/html; charset=utf-8", page)
                return live.last_was_sent.set() if is_last else None
            return self._answer(404, "text/plain", "not found")

        def _answer(self, status, kind, text):
            content = text.encode("utf-8")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            """Print nothing: the terminal shows progress."""

    return Handler


def follow(progress, report, planned):
    """Return a ``LivePage`` that replaces the object that shows progress, and print its address."""
    live = LivePage(progress, report, planned)
    print(f"the report so far: {live.address}", file=sys.stderr, flush=True)
    return live
