"""Losses, times and counts in tables."""

import math

import pytest

from ampcompat.abtest.number_format import UNKNOWN, milliseconds, number, seconds


@pytest.mark.parametrize(
    "value, told",
    [
        (10060, "10060"),
        (10064.4, "10064"),
        (1234567.0, "1234567"),
        (12345678.0, "1.23e+07"),
        (0.5, "0.5"),
        (0.123456, "0.1235"),
        (0.00001234, "1.23e-05"),
        (99999.9, "100000"),
        (-20000.4, "-20000"),
        (0, "0"),
        (math.inf, "inf"),
        (None, UNKNOWN),
    ],
)
def test_a_number_has_four_digits_and_an_exponent_only_where_it_saves_zeros(value, told):
    assert number(value) == told


def test_digits_that_round_up_to_the_next_power_of_ten_give_no_exponent():
    assert (milliseconds(0.9996), milliseconds(1.2344), milliseconds(0.01234)) == ("1000", "1234", "12.3")
    assert (seconds(99.96), number(120.4, 2)) == ("100 s", "120")
