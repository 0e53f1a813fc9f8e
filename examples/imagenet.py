"""A small ResNet, written for CUDA and NVIDIA Apex like a script for ImageNet: it does not use ampcompat.

    ampcompat run --device cpu examples/imagenet.py --opt-level O2
    torchrun --nproc_per_node 2 -m ampcompat run --device cpu examples/imagenet.py --opt-level O2 --sync_bn

The images are generated: noisy colored stripes whose direction is the class. Nothing is downloaded. On a machine with
    GPUs, leave out `--device cpu`.
"""

import argparse
import os
import shutil
import time

import numpy as np
import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
import torch.optim
import torch.utils.data
import torch.utils.data.distributed

try:
    from apex import amp, optimizers  # noqa: F401
    from apex.fp16_utils import *  # noqa: F401, F403 - as scripts of the time did
    from apex.multi_tensor_apply import multi_tensor_applier  # noqa: F401
    from apex.parallel import DistributedDataParallel as DDP
except ImportError:
    raise ImportError("This example needs apex: run it with `ampcompat run`.") from None


def parse():
    parser = argparse.ArgumentParser(description="Train a small ResNet with apex.amp on generated images.")
    parser.add_argument("--epochs", default=2, type=int, metavar="N")
    parser.add_argument("--start-epoch", default=0, type=int, metavar="N", help="for restarts")
    parser.add_argument("-b", "--batch-size", default=32, type=int, metavar="N", help="per process")
    parser.add_argument("-j", "--workers", default=1, type=int, metavar="N", help="processes that load images")
    parser.add_argument("--lr", "--learning-rate", default=0.05, type=float, metavar="LR", help="for 64 images a step")
    parser.add_argument("--momentum", default=0.9, type=float, metavar="M")
    parser.add_argument("--weight-decay", "--wd", default=1e-4, type=float, metavar="W")
    parser.add_argument("--print-freq", "-p", default=5, type=int, metavar="N")
    parser.add_argument("--images", default=640, type=int, metavar="N", help="training images to generate")
    parser.add_argument("--size", default=24, type=int, metavar="PIXELS")
    parser.add_argument("--width", default=16, type=int, metavar="CHANNELS", help="of the first stage")
    parser.add_argument("--resume", default="", type=str, metavar="PATH", help="the checkpoint to go on from")
    parser.add_argument("--checkpoint", default="", type=str, metavar="PATH", help="where to save one each epoch")
    parser.add_argument("-e", "--evaluate", action="store_true", help="evaluate only")
    parser.add_argument("--prof", default=-1, type=int, metavar="N", help="profile four iterations from this one on")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--local_rank", default=int(os.getenv("LOCAL_RANK", 0)), type=int)
    parser.add_argument("--sync_bn", action="store_true", help="batch norm over the batches of all processes")
    parser.add_argument("--opt-level", type=str, default="O1")
    parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
    parser.add_argument("--loss-scale", type=str, default=None)
    parser.add_argument("--channels-last", action="store_true")
    return parser.parse_args()


# -- data --------------------------------------------------------------------------------------------------------------

CLASSES = 10


class GeneratedImages(torch.utils.data.Dataset):
    """Images as returned by a decoder: arrays of bytes, height by width by color."""

    def __init__(self, count, size, first=0):
        self.count, self.size, self.first = count, size, first

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random = np.random.RandomState(self.first + index)
        label = index % CLASSES
        angle = np.pi * label / CLASSES
        y, x = np.mgrid[: self.size, : self.size]
        phase = (x * np.cos(angle) + y * np.sin(angle)) * 1.2 + random.uniform(0, 2 * np.pi)
        colour = random.uniform(0.5, 1.0, size=3)
        picture = 128 + 80 * np.sin(phase)[:, :, None] * colour + random.normal(0, 25, (self.size, self.size, 3))
        return picture.clip(0, 255).astype(np.uint8), label


def fast_collate(batch):
    """Stack images as bytes; they are converted to floats and normalized on the GPU."""
    targets = torch.tensor([label for _, label in batch], dtype=torch.int64)
    height, width, _ = batch[0][0].shape
    tensor = torch.zeros((len(batch), 3, height, width), dtype=torch.uint8)
    for i, (picture, _) in enumerate(batch):
        tensor[i] += torch.from_numpy(np.rollaxis(picture, 2).copy())
    return tensor, targets


class data_prefetcher:
    """Copies the next batch to the GPU on a separate stream while the current one is in use."""

    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.mean = torch.tensor([0.5 * 255] * 3).cuda().view(1, 3, 1, 1)
        self.std = torch.tensor([0.25 * 255] * 3).cuda().view(1, 3, 1, 1)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        with torch.cuda.stream(self.stream):
            self.next_input = self.next_input.cuda(non_blocking=True)
            self.next_target = self.next_target.cuda(non_blocking=True)
            self.next_input = self.next_input.float()
            self.next_input = self.next_input.sub_(self.mean).div_(self.std)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        input, target = self.next_input, self.next_target
        if input is not None:
            input.record_stream(torch.cuda.current_stream())
            target.record_stream(torch.cuda.current_stream())
            self.preload()
        return input, target


# -- model -------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super(Block, self).__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + identity)


class ResNet(nn.Module):
    def __init__(self, width, blocks=(1, 1, 1)):
        super(ResNet, self).__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        stages, channels = [], width
        for number, count in enumerate(blocks):
            for i in range(count):
                stages.append(Block(channels, width * 2**number, 2 if number and i == 0 else 1))
                channels = width * 2**number
        self.layers = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x):
        x = self.layers(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


# -- training ----------------------------------------------------------------------------------------------------------


def main():
    run()
    if args.distributed:
        dist.destroy_process_group()


def run():
    global args, best_prec1
    args, best_prec1 = parse(), 0
    assert torch.cuda.is_available(), "this script needs CUDA: use `ampcompat run --device cpu` without it."
    assert cudnn.enabled, "amp needs the cudnn backend to be enabled."
    cudnn.benchmark = True
    if args.deterministic:
        cudnn.benchmark, cudnn.deterministic = False, True
        torch.manual_seed(args.local_rank)
        torch.set_printoptions(precision=10)

    join_the_others()
    if args.local_rank == 0:
        print(f"device: {torch.cuda.get_device_name(args.gpu)}")
    model = ResNet(args.width)
    if args.sync_bn:
        import apex

        model = apex.parallel.convert_syncbn_model(model)
    model = model.cuda()
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)

    args.lr = args.lr * float(args.batch_size * args.world_size) / 64.0
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    model, optimizer = amp.initialize(
        model,
        optimizer,
        opt_level=args.opt_level,
        keep_batchnorm_fp32=args.keep_batchnorm_fp32,
        loss_scale=args.loss_scale,
    )
    if args.distributed:
        model = DDP(model, delay_allreduce=True)
    criterion = nn.CrossEntropyLoss().cuda()
    if args.resume:
        resume(model, optimizer)

    train_loader, val_loader, train_sampler = make_loaders()
    if args.evaluate:
        validate(val_loader, model, criterion)
        return
    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, epoch)
        prec1 = validate(val_loader, model, criterion)
        if args.local_rank == 0:
            is_best, best_prec1 = prec1 > best_prec1, max(prec1, best_prec1)
            save_checkpoint(
                {
                    "epoch": epoch + 1,
                    "state_dict": model.state_dict(),
                    "best_prec1": best_prec1,
                    "optimizer": optimizer.state_dict(),
                    "amp": amp.state_dict(),
                },
                is_best,
            )


def join_the_others():
    """Initialize the process group if the script was started by a launcher; each process has a GPU."""
    args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    args.gpu, args.world_size = 0, 1
    if args.distributed:
        args.gpu = args.local_rank
        torch.cuda.set_device(args.gpu)
        dist.init_process_group(backend="nccl", init_method="env://")
        args.world_size = dist.get_world_size()


def make_loaders():
    train_data = GeneratedImages(args.images, args.size)
    val_data = GeneratedImages(max(args.images // 4, args.batch_size), args.size, first=10**6)
    train_sampler = val_sampler = None
    if args.distributed:
        train_sampler = torch.utils.data.distributed.DistributedSampler(train_data)
        val_sampler = torch.utils.data.distributed.DistributedSampler(val_data)
    options = dict(batch_size=args.batch_size, num_workers=args.workers, pin_memory=True, collate_fn=fast_collate)
    train_loader = torch.utils.data.DataLoader(
        train_data, shuffle=train_sampler is None, sampler=train_sampler, drop_last=True, **options
    )
    val_loader = torch.utils.data.DataLoader(val_data, shuffle=False, sampler=val_sampler, **options)
    return train_loader, val_loader, train_sampler


def resume(model, optimizer):
    global best_prec1
    if not os.path.isfile(args.resume):
        print(f"=> no checkpoint found at '{args.resume}'")
        return
    checkpoint = torch.load(args.resume, map_location=lambda storage, location: storage.cuda(args.gpu))
    args.start_epoch = checkpoint["epoch"]
    best_prec1 = checkpoint["best_prec1"]
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    amp.load_state_dict(checkpoint["amp"])
    print("=> loaded checkpoint '{}' (epoch {})".format(args.resume, checkpoint["epoch"]))


def train(train_loader, model, criterion, optimizer, epoch):
    batch_time, losses, top1, top5 = AverageMeter(), AverageMeter(), AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    prefetcher = data_prefetcher(train_loader)
    input, target = prefetcher.next()
    i = 0
    while input is not None:
        i += 1
        if args.prof >= 0 and i == args.prof:
            print(f"Profiling begun at iteration {i}")
            torch.cuda.cudart().cudaProfilerStart()
        if args.prof >= 0:
            torch.cuda.nvtx.range_push(f"iteration {i}")

        adjust_learning_rate(optimizer, epoch, i, len(train_loader))
        if args.prof >= 0:
            torch.cuda.nvtx.range_push("forward")
        output = model(input)
        if args.prof >= 0:
            torch.cuda.nvtx.range_pop()
        loss = criterion(output, target)

        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()

        if i % args.print_freq == 0:
            # Reading a loss waits for the GPU, so it is done only every few iterations.
            prec1, prec5 = accuracy(output.data, target, topk=(1, 5))
            reduced_loss = loss.data
            if args.distributed:
                reduced_loss, prec1, prec5 = reduce_tensor(reduced_loss), reduce_tensor(prec1), reduce_tensor(prec5)
            losses.update(reduced_loss.item(), input.size(0))
            top1.update(prec1.item(), input.size(0))
            top5.update(prec5.item(), input.size(0))
            torch.cuda.synchronize()
            batch_time.update((time.time() - end) / args.print_freq)
            end = time.time()
            if args.local_rank == 0:
                images = args.world_size * args.batch_size
                print(
                    f"Epoch: [{epoch}][{i}/{len(train_loader)}]\t"
                    f"Time {batch_time.val:.3f} ({batch_time.avg:.3f})\t"
                    f"Speed {images / batch_time.val:.3f} ({images / batch_time.avg:.3f})\t"
                    f"Loss {losses.val:.6f} ({losses.avg:.4f})\t"
                    f"Prec@1 {top1.val:.3f} ({top1.avg:.3f})\t"
                    f"Prec@5 {top5.val:.3f} ({top5.avg:.3f})"
                )
        input, target = prefetcher.next()

        if args.prof >= 0:
            torch.cuda.nvtx.range_pop()
        if args.prof >= 0 and i == args.prof + 3:
            print(f"Profiling ended at iteration {i}")
            torch.cuda.cudart().cudaProfilerStop()
            return


def validate(val_loader, model, criterion):
    losses, top1, top5 = AverageMeter(), AverageMeter(), AverageMeter()
    model.eval()
    prefetcher = data_prefetcher(val_loader)
    input, target = prefetcher.next()
    while input is not None:
        with torch.no_grad():
            output = model(input)
            loss = criterion(output, target)
        prec1, prec5 = accuracy(output.data, target, topk=(1, 5))
        reduced_loss = loss.data
        if args.distributed:
            reduced_loss, prec1, prec5 = reduce_tensor(reduced_loss), reduce_tensor(prec1), reduce_tensor(prec5)
        losses.update(reduced_loss.item(), input.size(0))
        top1.update(prec1.item(), input.size(0))
        top5.update(prec5.item(), input.size(0))
        input, target = prefetcher.next()
    if args.local_rank == 0:
        print(f" * Loss {losses.avg:.4f} Prec@1 {top1.avg:.3f} Prec@5 {top5.avg:.3f}")
    return top1.avg


def save_checkpoint(state, is_best):
    if args.checkpoint:
        torch.save(state, args.checkpoint)
        if is_best:
            shutil.copyfile(args.checkpoint, args.checkpoint + ".best")


class AverageMeter(object):
    """The last value and the average of all values."""

    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def adjust_learning_rate(optimizer, epoch, step, steps_per_epoch):
    """Warm up over the first epoch, and divide the rate by ten after two thirds of the epochs."""
    lr = args.lr * (0.1 if epoch >= max(args.epochs * 2 // 3, 1) and args.epochs > 2 else 1.0)
    if epoch == 0:
        lr = lr * float(step) / steps_per_epoch
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr


def accuracy(output, target, topk=(1,)):
    """Return the percentage of targets among the k best predictions, for each k."""
    _, guesses = output.topk(max(topk), 1, True, True)
    correct = guesses.t().eq(target.view(1, -1).expand_as(guesses.t()))
    return [correct[:k].contiguous().view(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def reduce_tensor(tensor):
    """Return the mean over the processes."""
    total = tensor.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total / args.world_size


if __name__ == "__main__":
    main()
