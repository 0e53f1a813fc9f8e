"""Apex's DistributedDataParallel and Reducer over two gloo processes, against gradients added up by hand."""

import parallel_loops as loops
import pytest
import torch
from helpers import ranks
from helpers.precision import IS_STAND_IN

from ampcompat import amp
from ampcompat.apex.parallel import DistributedDataParallel, Reducer

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture(scope="module")
def outcomes():
    return ranks.run(loops.plain_cases)


def own_gradients(rank, step=0, seed=1):
    net = loops.make_net(seed)
    loops.loss_of(net, rank, step).backward()
    return loops.gradients(net)


def combined(factor, step=0, seed=1):
    """Return the sum of both ranks' gradients times a factor."""
    return [factor * (one + two) for one, two in zip(own_gradients(0, step, seed), own_gradients(1, step, seed))]


def assert_close(found, expected, tolerance=1e-12):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert (one is None) == (other is None)
        assert one is None or (one - other).abs().max() <= tolerance


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", sorted(loops.FLAGS))
def test_each_flag_has_its_effect(outcomes, name, rank):
    assert_close(outcomes[rank]["every_flag"][name], combined(loops.FLAGS[name][1], step=1))


def test_kept_buffers_hold_the_reduced_gradients(outcomes):
    kept, grads = outcomes[0]["every_flag"]["kept"]
    assert torch.equal(kept, grads)
    assert outcomes[0]["every_flag"]["shares memory"]


def test_trigger_params_end_the_messages(outcomes):
    assert outcomes[0]["every_flag"]["trigger sizes"] == [2, 1, 1]
    assert_close(outcomes[0]["every_flag"]["triggers"], combined(0.5, step=1))


def test_given_communicators_take_turns(outcomes):
    assert_close(outcomes[1]["every_flag"]["communicators"], combined(0.5, step=1))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", range(3), ids=["as it comes", "delayed", "one message per param"])
def test_ranks_may_use_different_params(outcomes, rank, case):
    """Half of the one rank's gradient on both; None where no rank used the param."""
    weights = [loops.batch(each).double().sum(0).expand(2, 6) / 2 for each in (0, 1)]
    bias = torch.full((2,), 4.0, dtype=torch.float64)
    assert_close(outcomes[rank]["unused"][case], [weights[0], bias, weights[1], bias, None, None])


@pytest.mark.parametrize("case", range(3), ids=["as it comes", "delayed", "recomputed"])
def test_shared_params_get_the_sum_of_their_uses(outcomes, case):
    alone = []
    for rank in (0, 1):
        net = loops.Tied(False)
        net(loops.batch(rank).double()).sum().backward()
        alone.append(loops.gradients(net))
    assert_close(outcomes[0]["shared"][case], [(one + two) / 2 for one, two in zip(*alone)])


@pytest.mark.skipif(not hasattr(torch, "is_autocast_enabled"), reason="torch < 1.6 averages after each inner pass")
def test_a_gradient_that_comes_too_late_is_an_error_with_the_way_out(outcomes):
    assert "delay_allreduce=True" in outcomes[0]["shared"][3]


@pytest.mark.parametrize("rank", [0, 1])
def test_disabled_passes_are_not_reduced_and_the_next_enabled_one_averages_all(outcomes, rank):
    alone, together = outcomes[rank]["accumulated"]
    assert_close(alone, [one + two for one, two in zip(own_gradients(rank, 0), own_gradients(rank, 1))])
    sums = [combined(0.5, step) for step in range(3)]
    assert_close(together, [sum(parts) for parts in zip(*sums)])


def test_a_pass_that_fails_or_reaches_no_param_disturbs_nothing(outcomes):
    for rank in (0, 1):
        untouched, after = outcomes[rank]["interrupted"]
        assert untouched == [None] * 4
        assert_close(after, combined(0.5))


def test_copies_and_params_unfrozen_later_are_reduced(outcomes):
    copied, pickled, original, unfrozen = outcomes[0]["copies"]
    assert original == [None] * 4
    for found in (copied, pickled, unfrozen):
        assert_close(found, combined(0.5))


def test_reducer_averages_at_each_call(outcomes):
    for rank in (0, 1):
        weights, grads, listed, sent = outcomes[rank]["reducers"]
        reference = loops.make_net(seed=0).state_dict()
        assert all(torch.equal(weights[name], reference[name]) for name in reference)
        assert_close(grads, combined(0.5, seed=0))
        assert [tensor.tolist() for tensor in listed] == [[1.5, 1.5], [0.5, 0.5, 0.5]]
        assert [tensor.tolist() for tensor in sent] == [[1.0, 1.0], [[1.0, 1.0]]]


@pytest.mark.skipif(IS_STAND_IN, reason="this torch has no half arithmetic on the CPU")
def test_half_sums_that_overflow_are_helped_by_float32_and_by_predividing(outcomes):
    plain, wide, predivided = outcomes[0]["half_sums"]
    assert plain == [float("inf")] * 2
    assert wide == predivided == [40000.0] * 2


def test_without_a_process_group_it_only_wraps():
    model = DistributedDataParallel(loops.make_net())
    assert list(model.state_dict()) == ["module." + name for name in loops.make_net().state_dict()]
    loops.loss_of(model, 0).backward()
    assert_close(loops.gradients(model), own_gradients(0))
    Reducer(model.module).reduce()
    assert_close(loops.gradients(model), own_gradients(0))


def test_initialize_refuses_what_is_wrapped_already():
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    with pytest.raises(RuntimeError, match="DistributedDataParallel"):
        amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), verbosity=0)


@pytest.mark.parametrize(
    "flags, named",
    [
        ({"shared_param": True}, "shared_param"),
        ({"delay_allreduce": True, "allreduce_trigger_params": []}, "delay_allreduce"),
        ({"num_allreduce_streams": 2, "allreduce_communicators": ([None], [None])}, "allreduce_communicators"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags, named):
    with pytest.raises(ValueError, match=named):
        DistributedDataParallel(torch.nn.Linear(2, 1), **flags)
    with pytest.raises(TypeError, match="Reducer"):
        Reducer(3)


def test_a_subclass_that_reduces_in_its_own_way_is_told_that_this_is_never_called():
    class InGroup(DistributedDataParallel):
        def allreduce_bucket(self, bucket, index, on_main_stream):
            raise AssertionError

    with pytest.raises(RuntimeError, match="InGroup.allreduce_bucket would never be called"):
        InGroup(torch.nn.Linear(1, 1))
