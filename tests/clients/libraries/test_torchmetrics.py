"""torchmetrics and ignite's metrics beside an open session: the values are those without one."""

import pytest
import torch
from helpers import client_modules
from helpers.networks import REAL, initialize, make_batch, make_network, session_of, train_step

from ampcompat import amp

torchmetrics = client_modules.imported("torchmetrics", "libraries")
ignite_metrics = client_modules.imported("ignite.metrics", "libraries")
ignite_engine = client_modules.imported("ignite.engine", "libraries")
functional = torchmetrics.functional

each_setting = pytest.mark.parametrize("setting", REAL)


def metrics():
    """Return metrics of classes, of probabilities and of numbers."""
    of_classes = {"task": "multiclass", "num_classes": 3}
    return {
        "accuracy": torchmetrics.Accuracy(**of_classes),
        "F1": torchmetrics.F1Score(average="macro", **of_classes),
        "AUROC": torchmetrics.AUROC(**of_classes),
        "calibration": torchmetrics.CalibrationError(**of_classes),
        "confusion": torchmetrics.ConfusionMatrix(**of_classes),
    }


def values_of(found, logits, classes):
    """Return {name: value} after two batches."""
    for metric in found.values():
        metric.update(logits[:3], classes[:3])
        metric.update(logits[3:], classes[3:])
    return {name: metric.compute() for name, metric in found.items()}


@each_setting
def test_metrics_of_a_models_outputs_are_the_same_within_a_session(setting):
    with session_of(setting):
        model = make_network()
        model, optimizer = initialize(setting, model, torch.optim.SGD(model.parameters(), lr=0.1))
        x, classes = make_batch(size=8)
        train_step(model, optimizer, (x, classes))
        logits = model(x).detach().float()
        within = values_of(metrics(), logits, classes)
        mean = torchmetrics.MeanMetric()
        mean.update(torch.tensor([1.0, 1e-4]))
        assert mean.compute() == torch.tensor([1.0, 1e-4]).mean()
    outside = values_of(metrics(), logits, classes)
    assert all(torch.equal(within[name], outside[name]) for name in outside)


@each_setting
def test_metrics_that_multiply_matrices_are_float32_where_casts_are_disabled(setting):
    x = torch.linspace(-1, 1, 24).view(4, 6)
    expected = functional.pairwise_cosine_similarity(x)
    with session_of(setting):
        model = make_network()
        initialize(setting, model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert torch.allclose(functional.pairwise_cosine_similarity(x).float(), expected, atol=0.02)
        with amp.disable_casts():
            assert torch.equal(functional.pairwise_cosine_similarity(x), expected)


@each_setting
def test_ignites_metrics_follow_a_trainer_within_a_session(setting):
    batches = [make_batch(seed=seed, size=8) for seed in range(3)]
    with session_of(setting):
        model = make_network()
        model, optimizer = initialize(setting, model, torch.optim.SGD(model.parameters(), lr=0.1))
        seen = []

        def update(engine, batch):
            loss = train_step(model, optimizer, batch)
            with torch.no_grad():
                seen.append((model(batch[0]).float(), batch[1]))
            return {"loss": loss, "y_pred": seen[-1][0], "y": batch[1]}

        trainer = ignite_engine.Engine(update)
        accuracy = ignite_metrics.Accuracy(output_transform=lambda output: (output["y_pred"], output["y"]))
        accuracy.attach(trainer, "accuracy")
        ignite_metrics.RunningAverage(output_transform=lambda output: output["loss"]).attach(trainer, "loss")
        trainer.run(batches, max_epochs=1)
    hits = torch.cat([logits.argmax(1) == classes for logits, classes in seen])
    assert trainer.state.metrics["accuracy"] == pytest.approx(hits.double().mean().item())
    assert trainer.state.metrics["loss"] > 0
