"""apex.RNN against torch's own recurrent layers and loops in float64; the state that the layers keep; every level."""

import copy
import math
import pickle

import pytest
import torch

from ampcompat.apex import recurrent
from ampcompat.apex.recurrent import GRU, LSTM, ReLU, RNNCell, Tanh, mLSTM, stackedRNN

KINDS = [LSTM, GRU, ReLU, Tanh]
TORCHS = {
    LSTM: torch.nn.LSTM,
    GRU: torch.nn.GRU,
    ReLU: lambda *args, **options: torch.nn.RNN(*args, nonlinearity="relu", **options),
    Tanh: torch.nn.RNN,
}


def names(kind):
    return kind.__name__


def paired(kind, **options):
    """Return one of Apex's kind and one of torch's with the same weights, in float64."""
    apex_network, torch_network = kind(3, 4, 2, **options).double(), TORCHS[kind](3, 4, 2, **options).double()
    for index, layer in enumerate(apex_network.rnns):
        for name in ("w_ih", "w_hh") + (("b_ih", "b_hh") if layer.bias else ()):
            long = {"w": "weight", "b": "bias"}[name[0]]
            getattr(torch_network, f"{long}_{name[2:]}_l{index}").data.copy_(getattr(layer, name).data)
    return apex_network, torch_network


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"batch_first": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=names)
def test_outputs_states_and_gradients_are_those_of_torch(kind, options):
    torch.manual_seed(0)
    apex_network, torch_network = paired(kind, **options)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    output, hidden = apex_network(x)
    right, right_hidden = torch_network(x)
    assert torch.allclose(output, right, rtol=1e-12)
    right_hidden = right_hidden if isinstance(right_hidden, tuple) else (right_hidden,)
    assert len(hidden) == len(right_hidden) and all(map(torch.allclose, hidden, right_hidden))
    output.pow(2).sum().backward()
    right.pow(2).sum().backward()
    assert torch.allclose(apex_network.rnns[0].w_ih.grad, torch_network.weight_ih_l0.grad, rtol=1e-10)
    assert torch.allclose(apex_network.rnns[1].w_hh.grad, torch_network.weight_hh_l1.grad, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS + [mLSTM], ids=names)
def test_two_directions_are_two_networks_side_by_side(kind):
    torch.manual_seed(0)
    network = kind(3, 4, 2, bidirectional=True).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    output, hidden = network(x)
    network.reset_hidden(2)
    there, there_hidden = network.fwd(x)
    back, back_hidden = network.bckwrd(x.flip(0))
    assert torch.allclose(output, torch.cat([there, back.flip(0)], -1))
    assert torch.allclose(hidden[0], torch.cat([there_hidden[0], back_hidden[0]], -1))
    network.reset_hidden(2)
    _, collected = network(x, collect_hidden=True)
    assert len(collected[0]) == 5 and torch.allclose(collected[0][4][:, :, :4], there_hidden[0])
    assert torch.allclose(collected[0][0][:, :, 4:], back_hidden[0])


def sigmoid(value):
    return 1.0 / (1.0 + math.exp(-value))


def dot(row, vector):
    return sum(a * b for a, b in zip(row, vector))


def test_mlstm_follows_its_formula():
    torch.manual_seed(0)
    network = mLSTM(2, 3, 1).double()
    layer = {name: param.tolist() for name, param in network.rnns[0].named_parameters()}
    x = torch.randn(4, 1, 2, dtype=torch.float64)
    output, (hidden, state) = network(x)
    h, c = [0.0] * 3, [0.0] * 3
    for step in range(4):
        seen = x[step, 0].tolist()
        between = [dot(one, seen) * dot(other, h) for one, other in zip(layer["w_mih"], layer["w_mhh"])]
        gates = [
            dot(layer["w_ih"][row], seen) + layer["b_ih"][row] + dot(layer["w_hh"][row], between) + layer["b_hh"][row]
            for row in range(12)
        ]
        gate_in, forget, new, out = gates[:3], gates[3:6], gates[6:9], gates[9:]
        c = [sigmoid(f) * old + sigmoid(i) * math.tanh(g) for f, old, i, g in zip(forget, c, gate_in, new)]
        h = [sigmoid(o) * math.tanh(each) for o, each in zip(out, c)]
        assert output[step, 0].tolist() == pytest.approx(h, rel=1e-12)
    assert hidden[0, 0].tolist() == pytest.approx(h) and state[0, 0].tolist() == pytest.approx(c)


@pytest.mark.parametrize("kind", [LSTM, ReLU, Tanh, mLSTM], ids=names)
def test_the_hidden_state_is_kept_until_it_is_reset(kind):
    torch.manual_seed(0)
    network = kind(3, 4, 2, output_size=5)
    x = torch.randn(6, 2, 3)
    whole, _ = network(x)
    assert whole.shape == (6, 2, 5)
    network.reset_hidden(2)
    halves = [network(x[:3])[0], network(x[3:])[0]]
    assert torch.allclose(torch.cat(halves), whole, atol=1e-6)
    network.detach_hidden()
    network(x)[0].sum().backward()
    assert network(torch.randn(1, 7, 3))[0].shape == (1, 7, 5)  # another batch size begins anew


def test_without_a_state_there_is_nothing_to_detach():
    with pytest.raises(RuntimeError, match="init_hidden"):
        LSTM(3, 4, 1).detach_hidden()


def test_collected_states_are_those_after_each_step():
    torch.manual_seed(0)
    network = LSTM(3, 4, 2)
    x = torch.randn(3, 2, 3)
    output, hidden = network(x, collect_hidden=True)
    assert [len(each) for each in hidden] == [3, 3] and hidden[0][0].shape == (2, 2, 4)
    assert all(torch.equal(hidden[0][step][1], output[step]) for step in range(3))


def test_dropout_is_between_layers_and_in_training_only():
    torch.manual_seed(0)
    network = Tanh(3, 4, 2, dropout=0.5)
    x = torch.randn(3, 2, 3)
    outputs = []
    for training in (True, True, False, False):
        network.train(training).reset_hidden(2)
        outputs.append(network(x)[0])
    assert not torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[2], outputs[3])


@pytest.mark.filterwarnings("ignore:pickle support for Storage:FutureWarning")  # torch 1.5
def test_models_that_have_run_copy_and_pickle():
    network = mLSTM(3, 4, 2)
    network(torch.randn(2, 2, 3))
    for clone in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(clone.rnns[0].hidden[0], network.rnns[0].hidden[0])
        assert not clone.rnns[0].hidden[0].requires_grad


def test_a_gru_has_no_projection():
    assert GRU(3, 4, 1, output_size=4)(torch.ones(2, 1, 3))[0].shape == (2, 1, 4)
    with pytest.raises(ValueError, match="hidden_size"):
        GRU(3, 4, 1, output_size=5)


def test_a_stack_of_other_arguments_is_an_error():
    layers = [RNNCell(1, 2, 2, recurrent._tanh, 1) for _ in range(2)]
    assert stackedRNN(layers, 2).nLayers == 2
    for wrong in (layers[:1], "LSTM"):
        with pytest.raises(TypeError, match="list of 2 layers"):
            stackedRNN(wrong, 2)
