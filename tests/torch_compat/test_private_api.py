"""The table of torch's private names is complete, has nothing that is not used, and is true of this torch."""

import pytest
import torch
from private_names import mentioned, sources

from ampcompat.cli.info import _support_lines
from ampcompat.torch_compat import features, private_api

if hasattr(torch, "compile"):
    pytest.importorskip("torch._dynamo.trace_rules", reason="imported here because its import changes torch")

LISTED = {row.owner + "." + row.name for row in private_api.NAMES}


def is_listed(found):
    """Return whether a name that the source mentions is a row's, an owner on the way to one, or within one."""
    if "." not in found:
        return found in {row.name for row in private_api.NAMES}
    return any((found + ".").startswith(name + ".") or name.startswith(found + ".") for name in LISTED)


def test_every_private_name_of_torch_in_the_source_is_listed():
    unlisted = sorted({"{}: {}".format(place, found) for place, found in mentioned() if not is_listed(found)})
    assert unlisted == [], "add them to ampcompat/torch_compat/private_api.py"


def test_every_listed_name_is_used():
    text = "\n".join(path.read_text() for path, _ in sources())
    plain = [row.name for row in private_api.NAMES if not row.name.startswith(("__", "_foreach_"))]
    assert [name for name in plain if name not in text] == []
    forms = [row.name for row in private_api.NAMES if row.name.startswith("_foreach_")]  # some by torch_facts.foreach
    assert [name for name in forms if name not in text and '"{}"'.format(name[len("_foreach_") :]) not in text] == []


def test_no_name_is_listed_twice_and_each_says_what_happens_without_it():
    assert len(LISTED) == len(private_api.NAMES)
    assert all(row.purpose and row.without for row in private_api.NAMES)


def test_no_name_is_gone_from_this_torch(record_property):
    absent = ["{}.{}".format(row.owner, row.name) for row in private_api.absent()]
    record_property("absent", absent)
    print("torch {} lacks {}".format(features.version(), ", ".join(absent) or "none"))
    assert private_api.gone() == []


@pytest.mark.parametrize(
    "version, tested",
    [("1.3.0", False), ("1.3.1", True), ("2.13.0+cpu", True), ("2.15.0+cu132", True), ("2.15.3", True)]
    + [("2.16.0.dev20261101", False), ("2.100.0", False), ("3.0.0a0+git123", False)],
)
def test_an_untested_torch_is_told_in_one_sentence(monkeypatch, version, tested):
    monkeypatch.setattr(features, "version", lambda: version)
    sentence = features.untested()
    assert (sentence is None) == tested
    if not tested:
        assert sentence == "torch {} is not tested; ampcompat is tested with torch 1.3.1 to 2.15".format(version)
        assert _support_lines()[0].endswith(": " + sentence)


def test_info_names_what_is_missing_and_what_happens_without_it(monkeypatch):
    row = private_api.PrivateName("torch.utils.checkpoint", "_NoSuchFrame", "a purpose", "this happens")
    late = private_api.PrivateName("torch", "_no_such_function", "a purpose", "that happens", until="1.0")
    monkeypatch.setattr(private_api, "NAMES", (row, late))
    lines = _support_lines()
    assert lines[1].split() == ["private", "names", "missing", ":"]
    assert [line.strip() for line in lines[2:]] == ["torch.utils.checkpoint._NoSuchFrame: this happens"]
    monkeypatch.setattr(private_api, "NAMES", ())
    assert _support_lines()[1].split(" : ") == ["private names missing ", "none"]
