"""What is seen of a forward pass: dtypes at the borders of layers, and casts to float32 that autocast undoes."""

import contextlib
import inspect

import pytest
import torch
import torch.nn.functional as F
from planted import conv, mlp, train

from ampcompat.diagnostics.audit import audit_text
from ampcompat.diagnostics.audit.audit import Audit
from ampcompat.support.torch_compat import features

pytestmark = pytest.mark.skipif(not features.is_version_within(oldest="2.4"), reason="an audit is tried from 2.4 on")

HALF, FULL = torch.bfloat16, torch.float32


def audited(model, dtype=HALF):
    """Return the report of an audit of training under autocast, or without it."""
    with Audit([]) as audit:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), autocast=dtype, steps=5)
    return audit.report()


def borders(report):
    """Return ``{(name and class, dtypes of inputs, of weights, of outputs): calls}``."""
    rows = report["dtypes"]["activations"]
    dtypes = ["/".join(each[key]) for each in rows for key in ("inputs", "weights", "outputs")]
    names = [f"{each['name']} {each['layer']}" for each in rows]
    return {(name, *dtypes[3 * place : 3 * place + 3]): rows[place]["calls"] for place, name in enumerate(names)}


def test_dtypes_at_the_borders_of_layers_are_those_of_one_pass():
    assert borders(audited(mlp(FULL))) == {
        ("0 Linear", "float32", "float32", "bfloat16"): 1,
        ("1 LayerNorm", "bfloat16", "float32", "bfloat16"): 1,
        ("2 Linear", "bfloat16", "float32", "bfloat16"): 1,
    }
    assert borders(audited(mlp(HALF), None)) == {
        ("0 Linear", "bfloat16", "bfloat16", "bfloat16"): 1,
        ("1 LayerNorm", "bfloat16", "bfloat16", "bfloat16"): 1,
        ("2 Linear", "bfloat16", "bfloat16", "bfloat16"): 1,
    }


def test_where_half_activations_meet_float32_layers_is_said():
    model = conv(HALF)
    model[2].float()
    shown = dict(audit_text.dtypes(audited(model, None)["dtypes"]))
    assert shown["float32 layers"] == "get bfloat16 (BatchNorm1d)"
    assert shown["activations"] == "bfloat16 (Unflatten, Conv1d, BatchNorm1d, Flatten, Linear)"


class Block(torch.nn.Module):
    """A small transformer block without heads, with RMSNorm as in LLaMA."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.ones(16))
        self.inside, self.outside, self.router = (torch.nn.Linear(16, size) for size in (48, 16, 4))

    def norm(self, x):
        """Normalize in float32."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight

    def attend(self, x):
        """Attend with a softmax in float32."""
        q, k, v = self.inside(self.norm(x)).split(16, -1)
        weights = F.softmax((q @ k.transpose(-2, -1)).float(), dim=-1)
        return x + self.outside(weights.type_as(v) @ v)

    def forward(self, x):
        """Return logits in float32."""
        return self.router(self.attend(x)).float()


class Routed(Block):
    """Its last layer is meant to compute in float32."""

    def forward(self, x):
        """Return logits."""
        wide = self.attend(self.inside(x)[:, :16]).float()
        return self.router(wide.view(-1, 16))


class Contrastive(Block):
    """Products of features that are meant to be computed in float32."""

    def forward(self, x):
        """Return the products."""
        features = self.outside(x)
        return features.float() @ features.to(torch.float32).T


class Exact(Routed):
    """Its last layer does compute in float32."""

    def forward(self, x):
        """Return logits."""
        wide = self.attend(self.inside(x)[:, :16]).float()
        with torch.autocast("cpu", enabled=False):
            return self.router(wide)


class Data(Block):
    """Gets data that it casts: neither was half."""

    def forward(self, x):
        """Return logits of float64 numbers, and of numbers that are counted."""
        return self.router(x.double().float()) + self.router((x * 1000).long().float())


@pytest.mark.parametrize("kind", [Block, Exact, Data])
def test_casts_of_scripts_that_compute_what_they_say_are_not_accused(kind):
    assert audited(kind())["findings"] == []


@pytest.mark.parametrize("kind, lines, function", [(Routed, (2, 3), "linear"), (Contrastive, (3, 3), "matmul")])
def test_a_cast_that_autocast_undoes_is_a_note_with_both_lines(kind, lines, function):
    (note,) = audited(kind())["findings"]
    assert note["kind"] == "undone_cast" and not note["is_wrong"]
    first = inspect.getsourcelines(kind.forward)[1]
    places = [f"{__file__}:{first + line}" for line in lines]
    text = "Half values that are explicitly cast to float32 ({}) are cast to bfloat16 by {} ({}) under autocast"
    assert note["text"].startswith(text.format(places[0], function, places[1]))


def test_nothing_of_it_is_seen_without_autocast():
    assert audited(Routed(), None)["findings"] == []


def test_functions_that_are_compiled_are_not_compiled_again(compiler_forgets):
    model = mlp(FULL)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    report = audited(compiled, None)
    assert len(graphs) == 1 and report["dtypes"]["activations"] is None
    assert dict(audit_text.dtypes(report["dtypes"]))["activations"] == "not seen: functions are compiled"


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
def test_a_compiled_step_has_no_part_of_the_audit_in_its_graphs(compiler_forgets):
    def graphs(context):
        torch._dynamo.reset()
        found = []

        def backend(graph, inputs):
            found.append(len(graph.graph.nodes))
            return graph.forward

        model = mlp(HALF)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        step = torch.compile(optimizer.step, backend=backend)
        with context:
            for _ in range(3):
                model(torch.randn(8, 16).to(HALF)).float().pow(2).mean().backward()
                step()
                optimizer.zero_grad()
        return found

    audit = Audit([])
    assert graphs(audit) == graphs(contextlib.nullcontext())
    assert [each["kind"] for each in audit.wrong] == ["lost_updates"]
