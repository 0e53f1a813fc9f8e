"""Whether half is emulated on a CPU is stated by facts: of the dtype, of torch, of what torch reports of the CPU."""

import types

import pytest
import torch

from ampcompat.engine.casting import emulated_half_arithmetic
from ampcompat.support.torch_compat import cpu

#: What torch reports of a CPU: None means that this torch has no such query.
REPORTS = {
    "AMX": {"amx_bf16": True, "avx512_bf16": True, "avx512_fp16": True},
    "AVX512-BF16": {"amx_bf16": False, "avx512_bf16": True, "avx512_fp16": True},
    "AVX2": {"avx2": True},
    "Arm": {"bf16": True, "fp16_arith": True, "sve_bf16": True},
    "unknown": None,
}


@pytest.fixture
def reported(monkeypatch):
    """Return a function that lets torch report these capabilities, and nothing limit oneDNN."""
    for name in cpu.ISA_LIMITS + (emulated_half_arithmetic.VARIABLE,):
        monkeypatch.delenv(name, raising=False)

    def report(capabilities, has_onednn=True):
        queries = {} if capabilities is None else {"get_capabilities": lambda: capabilities}
        monkeypatch.setattr(torch, "cpu", types.SimpleNamespace(**queries), raising=False)
        onednn = types.SimpleNamespace(is_available=lambda: has_onednn)
        monkeypatch.setattr(torch.backends, "mkldnn", onednn, raising=False)

    return report


@pytest.mark.parametrize("name", REPORTS)
def test_float16_is_emulated_on_every_cpu_bfloat16_unless_torch_reports_amx_units_wider_dtypes_never(reported, name):
    reported(REPORTS[name])
    expected = {torch.float16: True, torch.bfloat16: name != "AMX"}
    expected.update(dict.fromkeys([torch.float32, torch.float64, torch.int64], False))
    assert {dtype: cpu.emulation(dtype)[0] for dtype in expected} == expected
    assert {dtype: emulated_half_arithmetic.is_wanted(dtype) for dtype in expected} == expected


@pytest.mark.parametrize("variable", cpu.ISA_LIMITS)
@pytest.mark.parametrize(
    "limit, emulated",
    [("AVX512_CORE_BF16", True), ("avx2", True), ("AVX512_CORE_AMX", False), ("all", False), ("Default", False)],
)
def test_a_limit_of_onednn_counts_which_torch_does_not_report(reported, monkeypatch, variable, limit, emulated):
    reported(REPORTS["AMX"])
    monkeypatch.setenv(variable, limit)
    assert cpu.emulation(torch.bfloat16)[0] is emulated
    assert (variable in cpu.emulation(torch.bfloat16)[1]) is emulated


def test_units_without_onednn_serve_nobody(reported):
    reported(REPORTS["AMX"], has_onednn=False)
    assert cpu.emulation(torch.bfloat16)[0] is True


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("stated, emulated", [("on", True), ("off", False), (" ON ", True)])
def test_the_setting_overrides_every_fact_and_is_named_as_the_reason(reported, monkeypatch, name, stated, emulated):
    reported(REPORTS[name])
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, stated)
    told = (emulated, "AMPCOMPAT_HALF_MATH=" + stated.strip().lower())
    assert emulated_half_arithmetic.choice(torch.bfloat16) == emulated_half_arithmetic.choice(torch.float16) == told


@pytest.mark.parametrize("name, words", [("AMX", "torch's own kernels, because"), ("AVX2", "emulated (computed in")])
def test_the_choice_is_told_in_words(reported, name, words):
    reported(REPORTS[name])
    sentence = emulated_half_arithmetic.describe(torch.bfloat16)
    assert sentence.startswith(words) and "AMX" in sentence
