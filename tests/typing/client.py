"""A typed training script that is only read by type checkers. Each ``type: ignore`` is an error that they must find."""

from typing import List, Optional, Tuple, Union

import torch
from torch.nn.utils import clip_grad_norm_
from typing_extensions import assert_type

import ampcompat
from ampcompat import amp
from ampcompat.diagnostics.audit.audit import Audit
from ampcompat.diagnostics.estimate.memory_report_and_estimate import MemoryReport
from ampcompat.engine.session.disabled_session import DisabledSession
from ampcompat.engine.session.training_session import Session

net = torch.nn.Linear(8, 1)
adam = torch.optim.Adam(net.parameters())

# Models and optimizers keep their own types, alone or in lists.
assert_type(amp.initialize(net, adam, opt_level="O2"), Tuple[torch.nn.Linear, torch.optim.Adam])
assert_type(amp.initialize(net), torch.nn.Linear)
assert_type(amp.initialize([net], [adam]), Tuple[List[torch.nn.Linear], List[torch.optim.Adam]])
amp.initialize(net, adam, keep_fp32=["head", torch.nn.LayerNorm], loss_scale="dynamic", max_skips=20, diagnose=True)
amp.initialize(net, adam, opt_level=2)  # type: ignore[call-overload]
amp.initialize(net, adam, opt_levle="O2")  # type: ignore[call-overload]
amp.initialize(net, adam, growth_interval="often")  # type: ignore[call-overload]
amp.initialize("a model")  # type: ignore[type-var]

loss = net(torch.randn(4, 8)).pow(2).mean()
with amp.scale_loss(loss, adam) as scaled_loss:
    assert_type(scaled_loss, torch.Tensor)
amp.scale_loss(1.0, adam)  # type: ignore[arg-type]
clip_grad_norm_(amp.master_params(adam), 1.0)
assert_type(amp.step_was_skipped(adam), bool)
amp.load_state_dict(amp.state_dict())


@amp.float_function
def norm(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares: the decorator keeps this signature."""
    total: torch.Tensor = x.pow(2).sum()
    return total


assert_type(norm(loss), torch.Tensor)
norm("x")  # type: ignore[arg-type]

with ampcompat.session("O1", backend="patched") as session:
    assert_type(session, Session)
assert_type(ampcompat.current(), Optional[Union[Session, DisabledSession]])
with ampcompat.audit() as audit:
    assert_type(audit, Audit)
assert_type(ampcompat.estimate(net, torch.optim.Adam, "O2", loss=lambda model: loss, accumulate=2), MemoryReport)
assert_type(ampcompat.memory_report(net, adam, lambda: None), MemoryReport)
print(ampcompat.nothing)  # type: ignore[attr-defined]
