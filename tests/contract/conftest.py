"""What the contract's tests need before the first of them looks at torch."""

import contextlib

# Torch's optimizers import it when they are first used, and the import replaces torch.manual_seed: not our doing.
with contextlib.suppress(ImportError):
    import torch._dynamo  # noqa: F401
