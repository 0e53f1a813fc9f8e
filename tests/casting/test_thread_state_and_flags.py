"""The switch of casts, process and thread; autocast's flags, read and put back."""

import threading

import pytest
import torch

from ampcompat.engine.casting.autocast_flags import Flags
from ampcompat.engine.casting.thread_state import InRegion, Paused, Switch
from ampcompat.support.torch_compat import features

DEVICES = tuple(features.read().autocast_devices)


def seen_elsewhere(switch):
    """Return the value of a switch in another thread."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(switch.local.off))
    thread.start()
    thread.join()
    return seen[0]


def test_switch_is_off_until_it_is_turned_on_for_every_thread():
    switch = Switch()
    assert switch.local.off and seen_elsewhere(switch)
    switch.turn_on()
    assert not switch.local.off and not seen_elsewhere(switch)
    switch.turn_off()
    assert switch.local.off and seen_elsewhere(switch)


def test_two_switches_are_independent():
    one, other = Switch(), Switch()
    one.turn_on()
    assert other.local.off
    with Paused(one):
        other.turn_on()
        assert one.local.off and not other.local.off


def test_pauses_nest_and_a_region_suspends_them_all():
    switch = Switch()
    switch.turn_on()
    with Paused(switch), Paused(switch):
        with InRegion(switch):
            assert not switch.local.off
            with Paused(switch):
                assert switch.local.off
            assert not switch.local.off
        assert switch.local.off and not seen_elsewhere(switch)
    assert not switch.local.off


def test_switch_turned_off_inside_a_pause_stays_off_after_it():
    switch = Switch()
    switch.turn_on()
    with Paused(switch):
        switch.turn_off()
    assert switch.local.off


@pytest.mark.skipif(not DEVICES, reason="this torch has no autocast")
def test_flags_are_put_back_as_they_were():
    flags = Flags(DEVICES)
    before = flags.read()
    flags.enter(torch.bfloat16)
    assert flags.is_enabled() and flags.read()[1] is False
    with Paused(Switch(flags)):
        assert not flags.is_enabled()
    assert flags.is_enabled()
    flags.write(before)
    assert flags.read() == before
