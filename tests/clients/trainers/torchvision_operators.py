"""Let torchvision be imported beside a torch for CPUs.

Owns: ``DECLARED``.
Must not touch: torchvision, and what imports it (timm does, torchmetrics and transformers do where it is installed).
The surprise: the builds of torchvision that are easily had need a torch with CUDA, and their Python stops at operators which
only their compiled part declares. Declared here, without code, those operators let it be imported. Nothing is replaced.
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
