"""``ab --live``: a server on 127.0.0.1 with the page of what was recorded so far."""

import http.client
import io
import re
import threading

import pytest
from helpers.pages import PageReader, skip_without_report_extra

from ampcompat.abtest import Report, Run
from ampcompat.abtest.judging import advice
from ampcompat.abtest.planned_run import PlannedRun
from ampcompat.cli import ab_live as live_page
from ampcompat.cli.run_progress import Progress

skip_without_report_extra()


PLANNED = [PlannedRun("O0", ["train.py"]), PlannedRun("O0", ["train.py"], repeat=1), PlannedRun("O1", ["train.py"])]


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setattr(live_page, "INTERVAL", 0.0)
    report = Report(environment={"script": "train.py"})
    page = live_page.LivePage(Progress(io.StringIO()), report, PLANNED)
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


def record(live, label, losses=(2.0, 1.9, 1.8)):
    """Begin a run and make steps; return it."""
    run = Run()
    live.begin(label, run)
    for step, loss in enumerate(losses):
        run.loss.append((step, 0, loss))
        run.step_seconds.append(0.01)
        live.update()
    return run


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


def test_a_run_that_has_ended_is_shown_as_it_ended_and_short_runs_are_not(live):
    record(live, "O0").status = "finished"
    live.end()
    record(live, "O0 timing 1", losses=[7.5])
    live.end()
    text = get(live)[1]
    assert "[2.0, 1.9, 1.8]" in text and "runs now" not in text
    assert "7.5" not in text.partition('id="chart-loss-0"')[2].partition("</script>")[0]


def test_everything_is_handed_on_to_what_shows_progress(live):
    record(live, "O0")
    live.begin_phase(3, 20)
    assert live.step == 3 and (live.runs, live.total) == (3, 20)
    live.end()
    assert "O0: 3 steps in" in live.stream.getvalue()


def test_runs_that_the_report_has_already_are_shown():
    report = Report(environment={}, runs={"O0": Run(status="finished", loss=[(0, 0, 0.625)], repeats=[Run()])})
    live = live_page.LivePage(Progress(io.StringIO()), report, PLANNED)
    assert "[0.625]" in get(live)[1]
    live.close()


def test_other_hosts_and_paths_are_refused(live):
    assert get(live, host="example.org")[0] == 403
    assert get(live, host=f"LOCALHOST:{live._server.server_port}")[0] == 200
    for path in ("/etc/passwd", "/", "/version", "version/", "../"):
        assert get(live, path)[0] == 404


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
