"""What only a GPU has: side streams, CUDA graphs, replicas in threads, pinned prefetching, several devices."""

import threading

import pytest
import torch
import torch.nn.functional as F
from helpers import loops

import ampcompat
from ampcompat import amp
from ampcompat.diagnostics.selftest import runner

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
each_level = pytest.mark.parametrize("level", ["O1", "O2"])
SCALE = 128.0


@pytest.fixture(autouse=True)
def deterministic_convolutions():
    """Let cuDNN take the same algorithm in two runs that are compared."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(576, 32), torch.nn.Linear(32, 4)
    ).cuda()


def make_batches(count):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 16, 3, 8, 8, generator=generator)
    return [(image, torch.randint(0, 4, (16,), generator=generator)) for image in images]


def make_training(level, **options):
    """Return (model, optimizer): fused Adam, which takes ``found_inf`` and can be captured."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)


def step(model, optimizer, images, classes):
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(images).float(), classes)
    loops.step(loss, optimizer)
    return loss.detach()


def losses_of_plain_loop(level, batches, **options):
    model, optimizer = make_training(level, **options)
    losses = [step(model, optimizer, images.cuda(), classes.cuda()) for images, classes in batches]
    result = [float(loss) for loss in losses]
    ampcompat.reset()
    return result


@each_level
def test_a_side_stream_computes_what_the_default_stream_does(level):
    batches = make_batches(6)
    expected = losses_of_plain_loop(level, batches)
    model, optimizer = make_training(level)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        losses = [step(model, optimizer, images.cuda(), classes.cuda()) for images, classes in batches]
    torch.cuda.current_stream().wait_stream(stream)
    assert [float(loss) for loss in losses] == pytest.approx(expected, rel=1e-3)


@each_level
def test_graphed_callables_train_with_fresh_weights(level):
    batches = make_batches(8)
    expected = losses_of_plain_loop(level, batches, loss_scale=SCALE)
    model, optimizer = make_training(level, loss_scale=SCALE)
    model = torch.cuda.make_graphed_callables(model, (torch.randn(16, 3, 8, 8, device="cuda"),))
    losses = [step(model, optimizer, images.cuda(), classes.cuda()) for images, classes in batches]
    assert [float(loss) for loss in losses] == pytest.approx(expected, rel=1e-2)


@each_level
def test_a_whole_step_is_captured_and_replayed(level):
    batches = make_batches(10)
    expected = losses_of_plain_loop(level, batches, loss_scale=SCALE)
    model, optimizer = make_training(level, loss_scale=SCALE)
    images, classes = (each.cuda() for each in batches[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    losses = []
    with torch.cuda.stream(stream):
        for batch in batches[:3]:
            images.copy_(batch[0])
            classes.copy_(batch[1])
            losses.append(float(step(model, optimizer, images, classes)))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step(model, optimizer, images, classes)
    for batch in batches[3:]:
        images.copy_(batch[0])
        classes.copy_(batch[1])
        graph.replay()
        losses.append(float(loss))
    assert losses == pytest.approx(expected, rel=1e-2)


@each_level
def test_threads_compute_what_the_main_thread_does(level):
    model, _ = make_training(level)
    images = make_batches(1)[0][0].cuda()
    found = [None, None]
    with torch.no_grad():
        expected = model(images)

    def forward(index):
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            found[index] = model(images)
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=forward, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in found:
        assert result.dtype is expected.dtype and torch.allclose(result.float(), expected.float(), rtol=1e-2, atol=1e-3)


class Prefetcher:
    """Copies the next batch from pinned memory on a stream of its own, as Apex's ImageNet example does."""

    def __init__(self, batches):
        self.batches = iter([(images.pin_memory(), classes.pin_memory()) for images, classes in batches])
        self.stream = torch.cuda.Stream()
        self.load()

    def load(self):
        pinned = next(self.batches, None)
        with torch.cuda.stream(self.stream):
            self.next = pinned and tuple(each.cuda(non_blocking=True) for each in pinned)
            if self.next:
                self.next = (self.next[0].sub(0.5).mul(2.0), self.next[1])

    def __iter__(self):
        while self.next:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            for each in batch:
                each.record_stream(torch.cuda.current_stream())
            self.load()
            yield batch


@each_level
def test_a_prefetcher_with_pinned_memory_feeds_the_same_training(level):
    batches = make_batches(6)
    expected = losses_of_plain_loop(level, [((images - 0.5) * 2.0, classes) for images, classes in batches])
    model, optimizer = make_training(level)
    losses = [step(model, optimizer, *batch) for batch in Prefetcher(batches)]
    assert [float(loss) for loss in losses] == pytest.approx(expected, rel=1e-3)


@two_devices
@each_level
def test_data_parallel_trains_on_two_devices(level):
    batches = make_batches(6)
    expected = losses_of_plain_loop(level, batches)
    model, optimizer = make_training(level)
    parallel = torch.nn.DataParallel(model, device_ids=[0, 1])
    losses = [step(parallel, optimizer, images.cuda(), classes.cuda()) for images, classes in batches]
    assert [float(loss) for loss in losses] == pytest.approx(expected, rel=2e-2)


class OnTwoDevices(torch.nn.Module):
    """The first layer on one device, the second on another."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8).to("cuda:0")
        self.second = torch.nn.Linear(8, 1).to("cuda:1")

    def forward(self, x):
        return self.second(torch.relu(self.first(x.to("cuda:0"))).to("cuda:1"))


@two_devices
@each_level
def test_an_overflow_on_one_of_two_devices_skips_the_step_on_both(level):
    torch.manual_seed(0)
    model = OnTwoDevices()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    before = [param.detach().clone() for param in model.parameters()]
    with amp.scale_loss(model(torch.ones(4, 8)).sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
        model.second.bias.grad.fill_(float("inf"))
    optimizer.step()
    assert amp.step_was_skipped(optimizer)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters()))
    optimizer.zero_grad()
    loops.step(model(torch.ones(4, 8)).sum(), optimizer)
    assert not amp.step_was_skipped(optimizer)


@pytest.mark.filterwarnings("ignore")  # of torch, about features that a row tries out
def test_the_self_test_finds_no_fault():
    lines = []
    report = runner.run("cuda", quick=True, write=lines.append)
    assert report["counts"].get("failed", 0) == 0, "\n".join(lines)
