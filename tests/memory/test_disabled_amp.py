"""``memory_report`` after ``amp.initialize(enabled=False)``."""

import torch

import ampcompat
from ampcompat import amp


def test_memory_is_measured_where_amp_is_disabled():
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, enabled=False)

    def step():
        with amp.scale_loss(model(torch.ones(2, 8)).sum(), optimizer) as loss:
            loss.backward()
        optimizer.step()

    assert ampcompat.memory_report(model, optimizer, step).level == "float32 without amp"
