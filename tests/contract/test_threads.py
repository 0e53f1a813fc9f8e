"""Models that train in several threads of one session give what they give one after the other."""

import os
import sys
import threading

import forked
import half_kernels
import torch
from networks import INPUT, Product, initialize, session_of, settings_at
from processes import ROOT, environment

from ampcompat import amp
from ampcompat.models import forward as forwards
from ampcompat.patching import PatchStack
from ampcompat.weak_list import WeakList


def test_two_threads_train_two_models_to_the_last_bit():
    # In a separate process, because the failure was a crash.
    script = os.path.join(ROOT, "tests", "scripts", "two_threads.py")
    env = environment(**half_kernels.stand_in())
    ran = forked.run(forked.script, script, "--attempts", "2", "--steps", "10", env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@settings_at("O0", "O1", "O2")
def test_a_pass_reads_no_gradient_of_an_optimizer_that_it_was_not_given(setting):
    # Another thread may be writing it, without the GIL.
    def backward(model, optimizer):
        with amp.scale_loss(model(INPUT.to(setting.high)).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()

    read, original = [], torch.Tensor.grad

    def get(param):
        read.append(id(param))
        return original.__get__(param, type(param))

    with session_of(setting):
        models = [Product(1.0).to(setting.high) for _ in range(2)]
        mine, other = optimizers = [torch.optim.SGD(model.parameters(), lr=0.25) for model in models]
        initialize(setting, models, optimizers, loss_scale=128.0)
        backward(models[1], other)
        theirs = [id(param) for param in list(models[1].parameters()) + list(amp.master_params(other))]
        with PatchStack() as patches:
            patches.set(torch.Tensor, "grad", property(get, original.__set__, original.__delete__))
            backward(models[0], mine)
        assert read and not set(read) & set(theirs)


def in_threads(work, count=3):
    """Run ``work()`` in threads at once, with as many switches between them as there can be; return the errors."""
    errors = []

    def run():
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return errors


class Echo(torch.nn.Module):
    def forward(self, x):
        return x


def test_models_of_one_class_come_and_go_in_several_threads():
    x = torch.ones(1)

    def come_and_go():
        for _ in range(300):
            model, patches = Echo(), PatchStack()
            forwards.mark(model, forwards.ForwardCasts(Echo, input_dtype=torch.float64), patches)
            assert model(x).dtype is torch.float64

    assert in_threads(come_and_go) == []
    assert Echo()(x) is x


def test_a_weak_list_is_read_while_another_thread_changes_it():
    items = WeakList()

    def change_and_read():
        for _ in range(300):
            mine = Echo()
            items.add(mine)
            assert any(item is mine for item in items)
            items.discard(mine)
            assert not any(item is mine for item in items)

    assert in_threads(change_and_read) == []
    assert not items
