"""What only a GPU can show: real half units, device flags that are not read, modules on two devices."""

import pytest
import torch
from helpers import loops

import ampcompat
from ampcompat import amp

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def make_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
    ).cuda()


def make_batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 1, 8, 8, generator=generator).cuda(), torch.randint(0, 10, (32,), generator=generator).cuda()


def train(model, optimizer, steps):
    images, labels = make_batch()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loops.step(loss, optimizer)
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def test_every_level_learns_what_float32_learns(level, backend):
    with ampcompat.session(level, backend=backend, verbosity=0):
        model = make_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        amp.initialize(model, optimizer)
        losses = train(model, optimizer, 30)
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_a_step_with_a_fused_optimizer_never_waits_for_the_device(each):
    model = make_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    amp.initialize(model, optimizer, opt_level=each, verbosity=0)
    train(model, optimizer, 3)
    images, labels = make_batch()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loops.step(loss, optimizer)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_a_model_over_the_cpu_and_the_gpu_unscales_on_both(each):
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    amp.initialize([first, second], optimizer, opt_level=each, loss_scale=128.0, verbosity=0)
    loops.backward(second(first(torch.ones(2, 4)).cuda()).sum(), optimizer)
    grads = [param.grad for param in amp.master_params(optimizer)]
    assert {grad.device.type for grad in grads} == {"cpu", "cuda"}
    assert torch.equal(grads[-1].cpu(), torch.full((1,), 2.0))
