"""The workflow: actions are pinned by their commits, no checkout keeps credentials, what is built cannot publish."""

import re

from helpers.processes import read

WORKFLOW = read(".github", "workflows", "ci.yml")


def jobs():
    """Return the text of each job, by its name."""
    parts = re.split(r"^  ([\w-]+):\n", WORKFLOW.partition("\njobs:\n")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def test_every_action_is_pinned_by_its_commit_with_its_version_beside_it():
    used = re.findall(r"uses: (.*)", WORKFLOW)
    assert used and [each for each in used if not re.match(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", each)] == []


def test_no_checkout_keeps_credentials():
    checkouts = re.findall(r"uses: actions/checkout@.*\n(.*)", WORKFLOW)
    assert checkouts and set(map(str.strip, checkouts)) == {"with: {persist-credentials: false}"}


def test_only_the_job_that_publishes_has_its_rights_and_it_runs_no_command():
    allowed = [name for name, text in jobs().items() if "id-token: write" in text or "attestations: write" in text]
    assert allowed == ["publish"]
    assert "run:" not in jobs()["publish"] and "checkout" not in jobs()["publish"]
    assert "python -m build" in jobs()["build"] and re.search(r"install build==[\d.]+", jobs()["build"])
