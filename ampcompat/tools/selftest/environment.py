"""The environment of the self-test: versions, the device and its settings, as {name: text}."""

import os
import platform
import warnings
from collections import OrderedDict

import torch

from ... import __version__
from ...engine.casting import emulated_half_arithmetic
from ...support.dtype_names import dtype_name
from ...support.torch_compat import features, tested_releases
from .results import MEASURED, OK, CheckResult


def environment(device):
    """Return the facts that a report needs, by name.

    Args:
        device: "cpu", "cuda", "cuda:1", …
    """
    facts = OrderedDict(
        [
            ("ampcompat", __version__),
            ("torch", features.version()),
            ("python", platform.python_version()),
            ("system", platform.platform()),
            ("cpu", f"{platform.machine()}, {torch.get_num_threads()} threads"),
            ("device", device),
        ]
    )
    if device.startswith("cuda"):
        facts.update(_cuda(device))
    if device == "cpu":
        for low in (torch.float16, torch.bfloat16):
            facts[f"{dtype_name(low)} on this CPU"] = emulated_half_arithmetic.describe(low)
    for name in sorted(os.environ):
        if name.startswith("AMPCOMPAT_"):
            facts[name] = os.environ[name]
    return facts


def _cuda(device):
    properties = torch.cuda.get_device_properties(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch >= 2.9 recommends other names
        libraries = (getattr(torch.backends.cuda, "matmul", None), torch.backends.cudnn)  # torch 1.6 lacks the first
        flags = [getattr(each, "allow_tf32", False) for each in libraries]
    return [
        ("GPU", f"{properties.name}, {properties.total_memory / 1e9:.0f} GB"),
        ("compute capability", f"{properties.major}.{properties.minor}"),
        ("CUDA", str(torch.version.cuda or getattr(torch.version, "hip", None))),
        ("cuDNN", str(torch.backends.cudnn.version())),
        ("TF32 in products, convolutions", ", ".join("on" if flag else "off" for flag in flags)),
    ]


def check_version():
    """Yield a row: whether the test suite covers this torch. An untested one is not a failure."""
    untested = tested_releases.untested()
    tested = f"torch {features.version()} is tested"
    yield CheckResult("environment", "torch", MEASURED if untested else OK, untested or tested)
