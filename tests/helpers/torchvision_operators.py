"""Make torchvision importable with a CPU build of torch.

The commonly available builds of torchvision need a CUDA build of torch; otherwise their import fails at operators
that only the compiled part declares. ``DECLARED`` declares these operators without an implementation. Nothing is
replaced. timm needs torchvision, and so do torchmetrics and transformers where it is installed.
"""

import importlib.util

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _is_broken():
    try:
        import torchvision
    except Exception:  # a build for another torch fails in ways of its own
        return importlib.util.find_spec("torchvision") is not None
    return not torchvision


#: Declarations last as long as this object.
DECLARED = None
if _is_broken():
    DECLARED = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        DECLARED.define(operator + SCHEMA)
