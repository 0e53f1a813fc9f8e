"""``ab --live``: a server on 127.0.0.1 with the page of what was recorded so far."""

import http.client
import re
import socket
import threading

import pytest
from helpers.pages import PageReader, skip_without_report_extra

from ampcompat.abtest import Report, Run
from ampcompat.abtest.judging import advice
from ampcompat.abtest.planned_run import PlannedRun
from ampcompat.cli import ab_live as live_page

skip_without_report_extra()


class Progress:
    """Keeps what it is told."""

    def __init__(self):
        self.runs, self.told = 2, []

    def begin(self, label):
        self.told.append(("begin", label))

    def update(self, label, event):
        self.told.append(("update", label))

    def begin_phase(self, runs, steps):
        self.told.append(("begin_phase", runs))

    def end(self, label, run):
        self.told.append(("end", label))


PLANNED = [PlannedRun("O0", ["train.py"]), PlannedRun("O0", ["train.py"], repeat=1), PlannedRun("O1", ["train.py"])]


@pytest.fixture
def live():
    report = Report(environment={"script": "train.py"})
    page = live_page.LivePage(Progress(), report, PLANNED)
    yield page
    page._server.seen = -live_page.LAST_FETCH  # no browser waits
    page.close()


def get(live, path="", host=None):
    """Return (status, text) of a request; the path is relative to the page's, unless it begins with a slash."""
    port, token = re.match(r"http://127\.0\.0\.1:(\d+)(/.*/)$", live.address).groups()
    path = path if path.startswith("/") else token + path
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode("utf-8")


def step_event(step, loss):
    return {
        "step": step,
        "loss": [[0, loss]],
        "scale": [[0, 1.0]],
        "skipped": False,
        "seconds": 0.01,
        "samples": 4,
    }


def record(live, label, steps=3):
    live.begin(label)
    for step in range(steps):
        live.update(label, step_event(step, 2.0 - 0.1 * step))


def test_the_page_grows_with_the_runs_and_its_version_with_it(live):
    assert re.match(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/$", live.address)
    status, text = get(live)
    assert status == 200 and PageReader(text).errors == [] and "No level was run." in text
    versions = [int(get(live, "version")[1])]
    record(live, "O0")
    versions.append(int(get(live, "version")[1]))
    text = get(live)[1]
    assert versions == sorted(set(versions)) and f"const VERSION = '{versions[-1]}'" in text
    read = PageReader(text)
    assert read.errors == [] and "running" in read.text and len(read.all("figure")) == 1
    assert "connect-src 'self'" in text and '"value": [2.0, 1.9, 1.8]' in text and "Levels that failed" not in text


def test_a_finished_run_stays_as_it_is_while_short_runs_of_its_name_are_timed(live):
    record(live, "O0")
    live.end("O0", Run(status="finished", loss=[(0, 0, 1.25)]))
    live.begin("O0")
    live.update("O0", step_event(0, 7.5))
    live.end("O0", Run())
    text = get(live)[1]
    assert "[1.25]" in text and "7.5" not in text.partition('id="chart-loss-0"')[2].partition("</script>")[0]


def test_everything_is_handed_on_to_what_shows_progress(live):
    live.begin("O0")
    live.update("O0", None)
    live.end("O0", Run())
    live.begin_phase(3, 20)
    told = [("begin", "O0"), ("update", "O0"), ("end", "O0"), ("begin_phase", 3)]
    assert live._progress.told == told and live.runs == 2


def test_runs_that_the_report_has_already_are_shown():
    report = Report(environment={}, runs={"O0": Run(status="finished", loss=[(0, 0, 0.625)], repeats=[Run()])})
    live = live_page.LivePage(Progress(), report, PLANNED)
    assert "[0.625]" in get(live)[1]
    live.close()


def test_other_hosts_and_paths_are_refused(live):
    assert get(live, host="example.org")[0] == 403
    assert get(live, host=f"LOCALHOST:{live._server.server_port}")[0] == 200
    for path in ("/etc/passwd", "/", "/version", "version/", "../"):
        assert get(live, path)[0] == 404


def test_slow_clients_end_with_the_server(live, monkeypatch):
    before = threading.active_count()
    slow = []
    for _ in range(20):
        slow.append(socket.create_connection(("127.0.0.1", live._server.server_port)))
        slow[-1].sendall(b"GET / HTTP/1.1\r\nHost: ")
    assert get(live, "version")[0] == 200  # accepted after the others
    threads = [each for each in threading.enumerate() if "process_request" in each.name or each.daemon]
    assert threading.active_count() >= before + 20
    live.close()
    for each in threads:
        each.join(live_page.CLIENT_TIMEOUT / 2)
    assert threading.active_count() < before
    for each in slow:
        each.close()


def test_a_browser_that_looks_gets_the_last_page(live):
    get(live)
    live._report.add("O0", 0, Run(status="finished", loss=[(step, 0, 1.0) for step in range(30)]))
    advice.advise(live._report)
    closing = threading.Thread(target=live.close)
    closing.start()
    while not live._is_last:
        closing.join(0.01)
    text = get(live)[1]
    closing.join()
    assert "grows with them" not in text and "<svg" in text and "connect-src" not in text
    with pytest.raises(OSError):
        get(live)
