"""torchvision: the loops of its references for classification and detection, with Apex's calls in them."""

import math

import pytest
import torch
from helpers import client_modules
from helpers.networks import REAL, initialize, session_of

from ampcompat import amp

models = client_modules.imported("torchvision.models", "libraries")
detection = client_modules.imported("torchvision.models.detection", "libraries")
ops = client_modules.imported("torchvision.ops", "libraries")

each_level = pytest.mark.parametrize("setting", [each for each in REAL if each.values[0].backend != "patched"])
#: O3 computes everything in half, which detection's boxes are too large for.
each_sound_level = pytest.mark.parametrize(
    "setting", [each for each in REAL if each.values[0].backend != "patched" and each.id != "O3"]
)


def optimizer_of(model):
    params = [param for param in model.parameters() if param.requires_grad]
    return torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=1e-4)


def iterate(model, optimizer, loss_of, steps):
    """Return the losses of some iterations, with clipping as references/classification/train.py has it."""
    losses = []
    for _ in range(steps):
        loss = loss_of(model)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 5.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def classification_loss(model):
    generator = torch.Generator().manual_seed(1)
    images, classes = torch.randn(4, 3, 32, 32, generator=generator), torch.tensor([0, 1, 2, 3])
    return torch.nn.functional.cross_entropy(model(images).float(), classes, label_smoothing=0.1)


def detection_loss(model):
    generator = torch.Generator().manual_seed(1)
    images = [torch.rand(3, 64, 64, generator=generator), torch.rand(3, 64, 80, generator=generator)]
    boxes = torch.tensor([[4.0, 4.0, 40.0, 44.0], [20.0, 10.0, 60.0, 60.0]])
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 2])}, {"boxes": boxes[:1], "labels": torch.tensor([2])}]
    return sum(loss.float() for loss in model(images, targets).values())


def detector():
    torch.default_generator.manual_seed(0)
    options = {"min_size": 64, "max_size": 80, "rpn_pre_nms_top_n_train": 50, "rpn_post_nms_top_n_train": 20}
    return detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, **options
    )


def classifier():
    torch.default_generator.manual_seed(0)
    return models.resnet18(weights=None, num_classes=4)


@each_level
def test_a_classifier_trains(setting):
    with session_of(setting):
        model = classifier()
        model, optimizer = initialize(setting, model, optimizer_of(model), init_scale=2.0**7)
        losses = iterate(model, optimizer, classification_loss, 4)
        assert losses[-1] < losses[0]
        model.eval()
        with torch.inference_mode():
            assert model(torch.zeros(1, 3, 32, 32)).isfinite().all()


@each_sound_level
def test_a_detector_trains_and_finds_boxes(setting):
    first = detection_loss(detector()).item()
    with session_of(setting):
        model = detector()
        # torchvision's own checks, and its kernels on a CPU, know no boxes in bfloat16.
        options = {"keep_fp32": ["rpn", "roi_heads"]} if setting.level == "O5" else {}
        model, optimizer = initialize(setting, model, optimizer_of(model), **options)
        losses = iterate(model, optimizer, detection_loss, 3)
        assert all(map(math.isfinite, losses)) and abs(losses[0] - first) < 0.2 * first
        model.eval()
        with torch.inference_mode():
            (found,) = model([torch.rand(3, 64, 64)])
        assert found["boxes"].shape[1:] == (4,) and found["scores"].isfinite().all()
