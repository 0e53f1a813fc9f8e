"""The table of torch's private names is complete, has nothing that is not used, and is true of this torch."""

import pytest
import torch
from private_names import mentioned, sources

from ampcompat.cli.info_command import _support_lines
from ampcompat.support.torch_compat import features, private_api

if hasattr(torch, "compile"):
    pytest.importorskip("torch._dynamo.trace_rules", reason="imported here because its import changes torch")

LISTED = {row.owner + "." + row.name for row in private_api.NAMES}


def is_listed(found):
    """Return whether a name that the source mentions is a row's, an owner on the way to one, or within one."""
    if "." not in found:
        return found in {row.name for row in private_api.NAMES}
    return any((found + ".").startswith(name + ".") or name.startswith(found + ".") for name in LISTED)


def test_every_private_name_of_torch_in_the_source_is_listed():
    unlisted = sorted({f"{place}: {found}" for place, found in mentioned() if not is_listed(found)})
    assert unlisted == [], "add them to ampcompat/support/torch_compat/private_api.py"


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
    absent = [f"{row.owner}.{row.name}" for row in private_api.absent()]
    record_property("absent", absent)
    print("torch {} lacks {}".format(features.version(), ", ".join(absent) or "none"))
    assert private_api.gone() == []


@pytest.mark.parametrize(
    "version, nearest",
    [("1.2.0", "1.3"), ("2.4.1", "2.3 and 2.5"), ("2.12.0+cpu", "2.10 and 2.13"), ("2.16.0.dev20261101", "2.15")]
    + [("2.100.0", "2.15"), ("3.0.0a0+git123", "2.15")],
)
def test_an_untested_torch_is_told_with_the_nearest_tested_ones(monkeypatch, version, nearest):
    monkeypatch.setattr(features, "version", lambda: version)
    monkeypatch.setattr(features, "TESTED", ("1.3", "2.3", "2.5", "2.10", "2.13", "2.15"))
    sentence = f"torch {version} is not tested; nearest tested: {nearest}"
    assert features.untested() == sentence
    assert _support_lines()[0].endswith(": " + sentence)
    assert "ampcompat selftest" in _support_lines()[1]


@pytest.mark.parametrize("version", ["1.3.1", "2.13.0+cpu", "2.15.0+cu132", "2.15.3"])
def test_each_release_of_a_tested_minor_version_is_tested(monkeypatch, version):
    monkeypatch.setattr(features, "version", lambda: version)
    assert features.untested() is None
    assert _support_lines()[0].endswith(": yes")


def test_info_names_what_is_missing_and_what_happens_without_it(monkeypatch):
    row = private_api.PrivateName("torch.utils.checkpoint", "_NoSuchFrame", "a purpose", "this happens")
    late = private_api.PrivateName("torch", "_no_such_function", "a purpose", "that happens", until="1.0")
    monkeypatch.setattr(private_api, "NAMES", (row, late))
    monkeypatch.setattr(features, "untested", lambda: None)
    lines = _support_lines()
    assert lines[1].split() == ["private", "names", "missing", ":"]
    assert [line.strip() for line in lines[2:]] == ["torch.utils.checkpoint._NoSuchFrame: this happens"]
    monkeypatch.setattr(private_api, "NAMES", ())
    assert _support_lines()[1].split(" : ") == ["private names missing ", "none"]
