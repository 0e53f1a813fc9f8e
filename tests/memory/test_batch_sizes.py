"""The largest batch that fits, against peaks counted by hand."""

import functools

import pytest
import torch
from helpers.fake_devices import needs_fake_steps
from hypothesis import given
from hypothesis import strategies as st

import ampcompat
from ampcompat.diagnostics.estimate.batch_sizes import LARGEST, largest_batch, parse_size, shown_batch
from ampcompat.errors import AmpValueError


@pytest.mark.parametrize(
    "text, size",
    [("16GiB", 16 * 2**30), ("40 GB", 40 * 10**9), ("1.5MiB", 1572864), ("7B", 7), ("2kB", 2000)],
    ids=str,
)
def test_sizes_are_read_with_their_units(text, size):
    assert parse_size(text) == (size, text)


@pytest.mark.parametrize("text", ["16", "GiB", "16 gib", "-1GB", ""])
def test_other_texts_are_refused_with_the_units(text):
    with pytest.raises(AmpValueError, match="units B, kB.*GiB"):
        parse_size(text)


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(0, 500), st.integers(1, 10**8))
def test_the_largest_batch_fits_and_the_next_does_not(fixed, per_item, bend, limit):
    """The peak is a constant and a part per item; up to ``bend`` items another moment is the peak."""
    asked = []

    def peak_of(size):
        asked.append(size)
        return max(fixed + per_item * size, fixed + per_item * bend + per_item * size // 3)

    found = largest_batch(peak_of, limit)
    assert len(asked) <= 40
    assert found == 0 or peak_of(found) <= limit
    assert found == LARGEST or peak_of(found + 1) > limit


def test_nothing_fits_and_everything_fits():
    found = [largest_batch(peak_of, 2**21) for peak_of in (lambda size: 1 << 30, lambda size: size)]
    assert found == [0, LARGEST] and list(map(shown_batch, found)) == ["none", "2,048 or more"]


@needs_fake_steps
def test_the_largest_batch_of_a_model_has_a_peak_below_the_memory():
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))

    def peak_of(level, size):
        loss = lambda model: model(torch.randn(size, 64)).float().pow(2).mean()  # noqa: E731
        return ampcompat.estimate(model, torch.optim.Adam, level, loss=loss).peak_total

    sizes = {level: largest_batch(functools.partial(peak_of, level), 2**20) for level in ("O0", "O2")}
    for level, size in sizes.items():
        assert peak_of(level, size) <= 2**20 < peak_of(level, size + 1)
    assert sizes["O2"] > sizes["O0"] > 64
