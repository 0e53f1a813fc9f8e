"""What training holds at the peak of a step, counted by the benchmark itself on a small tower of layers."""

import pytest
import torch
from helpers import benchmark_files, half_kernels

from ampcompat.support import tensor_lists

if half_kernels.stand_in() or not hasattr(torch.Tensor, "untyped_storage"):
    pytest.skip("this torch cannot be asked for storages, or has no half arithmetic", allow_module_level=True)

LAYERS, WIDTH = 32, 32
LAYER = WIDTH * (WIDTH + 1)
#: Activations, the loss, flags and counters of steps, per param of so small a model.
SMALL = 0.15


@pytest.fixture(scope="module")
def memory():
    return benchmark_files.load("memory")


def held(memory, level):
    return memory.measure(level, LAYERS, WIDTH, memory.OPTIMIZERS["adam"])


@pytest.mark.parametrize("each", ["O2", "O5"])
def test_adam_at_o2_holds_eighteen_bytes_per_param_and_a_chunk(memory, monkeypatch, each):
    monkeypatch.setattr(tensor_lists, "CHUNK", LAYER)
    found = held(memory, each)
    assert found["backward"] <= memory.FORMULA + SMALL
    assert found["unscale"] <= 18 + 2 / LAYERS + SMALL
    assert found["gradients"] <= 18 + SMALL
    # Adam's own arithmetic on one weight: two tensors of that weight's size.
    assert found["step"] <= 18 + 8 / LAYERS + SMALL
    assert found["after"] <= 14 + SMALL
