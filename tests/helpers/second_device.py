"""A plugin of pytest for ``tests/second_device``: imports torch_xla, whose CPU runtime is a device of type "xla".

The device must exist before the first backward pass, which is in a conftest: autograd learns of no device later.
"""

import os

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch  # noqa: E402
import torch_xla  # noqa: E402, F401

torch.zeros(1, device="xla")
