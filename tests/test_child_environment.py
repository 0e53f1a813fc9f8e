"""What a process tells the Pythons that it starts is what they read."""

import os

import pytest

from ampcompat.engine.session import process_state
from ampcompat.support.child_environment import ROOT, SITE, STARTUP, ChildEnvironment

TOLD = {
    "opt_level": "O2",
    "backend": "patched",
    "verbosity": 0,
    "dtypes": "float32,float64",
    "diagnose": True,
    "store_param_remainders": False,
    "keep_fp32": "head,body",
    "op_stats": True,
    "op_stats_file": "calls.json",
    "stats_every": 5,
    "stats_file": "stats.csv",
    "device": "cpu",
    "forces_level": True,
    "command_for_cpu": "ampcompat run --device cpu train.py 'a b'",
}


def test_a_child_reads_what_it_is_told():
    told = ChildEnvironment(**TOLD)
    assert ChildEnvironment.from_env(told.to_env()) == told
    assert len(told.variables()) == len(TOLD) and set(told.to_env()) == set(told.variables()) | {"PYTHONPATH"}
    assert ChildEnvironment().to_env() == {} and ChildEnvironment.from_env({}) == ChildEnvironment()


def test_an_empty_variable_tells_nothing():
    empty = dict.fromkeys(ChildEnvironment(**TOLD).variables(), "")
    assert ChildEnvironment.from_env(empty) == ChildEnvironment()


@pytest.mark.parametrize(
    "told, first, rest",
    [
        ({"has_alias": True}, [SITE], ["one", STARTUP, "two", ROOT]),
        ({"has_alias": False}, [], ["one", STARTUP, "two", ROOT]),
        ({"device": "cpu"}, [STARTUP], ["one", SITE, "two", ROOT]),
        ({"forces_level": True, "has_alias": True}, [STARTUP, SITE], ["one", "two", ROOT]),
    ],
    ids=str,
)
def test_the_path_of_a_child(monkeypatch, told, first, rest):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["one", STARTUP, SITE, "two", ROOT]))
    assert ChildEnvironment(**told).to_env()["PYTHONPATH"].split(os.pathsep) == first + rest


def test_overrides_are_set_and_removed(monkeypatch):
    for name in ChildEnvironment(**TOLD).variables():
        monkeypatch.delenv(name, raising=False)
    process_state.set_command_line(opt_level="O1", verbosity=0, stats_every=2)
    assert process_state.command_line() == {"opt_level": "O1", "verbosity": 0}
    assert process_state.observed() == {"stats_every": 2}
    process_state.set_command_line(opt_level=None, stats_every=None)
    assert process_state.command_line() == {"verbosity": 0} and process_state.observed() == {}
    process_state.set_command_line(verbosity=None)
