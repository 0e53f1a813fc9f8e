"""A graph that fails takes the values of all tensors with it; a file of its own, since no later step works."""

import pytest
import torch
from xla import end_step

import ampcompat
from ampcompat import amp


class Failing(torch.nn.Module):
    """Two layers with a norm between them that torch_xla takes and cannot compute."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        ones = [torch.ones(4, device=x.device) for _ in range(4)]
        return self.last(torch.ops.aten.native_batch_norm(self.first(x), *ones, True, 0.1, 1e-5)[0])


def test_an_optimizer_has_its_params_again_after_a_graph_that_failed():
    model = Failing().to("xla")
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", loss_scale=8.0, verbosity=0)
    with amp.scale_loss(model(torch.ones(8, 4, device="xla")).float().mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    with pytest.raises(ValueError, match="mixed precision is disallowed"):
        end_step("xla")
    with pytest.raises(RuntimeError, match="tensor_data"):  # the values are lost
        ampcompat.reset()
    assert all(one is other for one, other in zip(optimizer.param_groups[0]["params"], params))
