"""``ab --live``: serve the page of the report on 127.0.0.1 during the runs, with the standard library's HTTP server."""

import copy
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..abtest.report.html import to_html
from ..abtest.report_data import Report, label_of

#: How many seconds a browser that requested the page within as many seconds gets to fetch the last page.
LAST_FETCH = 5.0

#: How many seconds the server waits for a client to send or receive.
CLIENT_TIMEOUT = 10.0

#: Seconds between two copies of a run in progress.
INTERVAL = 1.0


class LivePage:
    """The report so far. It replaces the ``Progress``, and forwards everything to it.

    The server's threads read copies of runs, which the thread of the runs makes.

    Args:
        progress: the ``Progress``.
        report: the ``Report`` with the runs that it already has.
        planned: the ``PlannedRun`` objects of the whole series.
    """

    def __init__(self, progress, report, planned):
        self._progress, self._lock, self._report = progress, threading.Lock(), report
        self._planned = {each.label: each for each in planned}
        self._copies = {}  # label -> Run
        self._label, self._copied = None, 0.0  # the run in progress, and when it was copied
        for level, repeat, run in report.every_run():
            self._copies[label_of(level, repeat)] = _alone(run)
        self.version, self.last_was_sent, self._is_last = 0, threading.Event(), False
        self.path = f"/{secrets.token_urlsafe(16)}/"  # other users of the machine do not know it
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.live = self
        self._server.seen = -LAST_FETCH  # when a browser last requested the page
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __getattr__(self, name):
        return getattr(self._progress, name)

    @property
    def address(self):
        """The page's address, which has a random part."""
        return f"http://127.0.0.1:{self._server.server_port}{self.path}"

    def begin(self, label, run):
        """Note that a run begins; short timing runs, which have other labels, are not shown."""
        self._progress.begin(label, run)
        self._label = label
        self._show(run, status="interrupted", error="runs now")

    def update(self):
        """Show the steps that a run has made since it was last copied."""
        self._progress.update()
        run, label = self._progress.run, self._label
        is_due = time.monotonic() - self._copied >= INTERVAL
        if is_due and label in self._copies and len(run.step_seconds) > len(self._copies[label].step_seconds):
            self._show(run, status="interrupted", error="runs now")

    def end(self):
        """Show a run that has ended."""
        self._show(self._progress.run)
        self._progress.end()

    def _show(self, run, **changes):
        if self._label in self._planned:
            found = _alone(run)
            vars(found).update(changes)
            with self._lock:
                self._copies[self._label], self._copied = found, time.monotonic()
                self.version += 1

    def page(self):
        """Return (the page, whether it is the last one)."""
        with self._lock:
            if self._is_last:
                return to_html(self._report), True
            report = Report(environment=dict(self._report.environment), baseline=self._report.baseline)
            for label, each in self._planned.items():
                if label in self._copies:
                    report.add(each.level, each.repeat, copy.copy(self._copies[label]))
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


class _Server(ThreadingHTTPServer):
    """Answers each request in a daemon thread."""

    def handle_error(self, request, client_address):
        """Print nothing about a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    """Answers a request for the page of ``server.live``, the ``LivePage``."""

    timeout = CLIENT_TIMEOUT

    def do_GET(self):
        """Answer with the page, or with its version."""
        hosts = [f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")]
        if (self.headers.get("Host") or "").lower() not in hosts:  # another site's name for this address
            return self._answer(403, "text/plain", "not this host")
        live = self.server.live
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


def _alone(run):
    """Return a copy of a run without its repeats."""
    found = copy.copy(run)
    found.repeats = []
    return copy.deepcopy(found)
