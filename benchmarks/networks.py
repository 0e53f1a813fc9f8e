"""The networks of the benchmarks, and what loads them in several."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def perceptron(*widths, last=None):
    """Return linear layers of these widths, each with a ReLU, and a last one without."""
    layers = [layer for pair in zip(widths, widths[1:]) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers, *([nn.Linear(widths[-1], last)] if last else []))


def encoder(layers, width, heads, hidden, activation="relu"):
    """Return torch's own transformer encoder, without dropout."""
    layer = nn.TransformerEncoderLayer(width, heads, hidden, 0.0, activation, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class DoubleConv(nn.Sequential):
    """Two 3 x 3 convolutions, each with batch norm and ReLU."""

    def __init__(self, inputs, outputs):
        layers = []
        for channels in (inputs, outputs):
            convolution = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class UNet(nn.Module):
    """Four steps down and four up, with 32 channels at full resolution (Ronneberger et al. 2015)."""

    def __init__(self, inputs=1, outputs=1, width=32):
        super().__init__()
        widths = [width * 2**depth for depth in range(5)]
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip([inputs] + widths, widths))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in widths[-2::-1])
        self.up = nn.ModuleList(DoubleConv(2 * a, a) for a in widths[-2::-1])
        self.head = nn.Conv2d(width, outputs, 1)

    def forward(self, x):
        kept = []
        for block in self.down[:-1]:
            kept.append(block(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([kept.pop(), grow(x)], dim=1))
        return self.head(x)


class Bert(nn.Module):
    """BERT-base: 12 layers of width 768 with 12 heads, and a classifier for each token (Devlin et al. 2018)."""

    def __init__(self, layers=12, width=768, heads=12, words=30522, positions=512, labels=9):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.norm, self.layers = nn.LayerNorm(width), encoder(layers, width, heads, 4 * width, "gelu")
        self.classifier = nn.Linear(width, labels)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.classifier(self.layers(self.norm(self.words(tokens) + self.positions(places))))


class Block(nn.Module):
    """A block of GPT-2, with the function between its two largest layers, and attention written out or torch's own."""

    def __init__(self, width, heads, between=F.gelu, written_out=False, is_causal=False):
        super().__init__()
        self.heads, self.between, self.written_out, self.is_causal = heads, between, written_out, is_causal
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inside, self.outside = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        """Attend to all places, or to those before."""
        batch, length, width = x.shape
        parts = self.inside(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if self.written_out:
            weights = torch.matmul(query, key.transpose(-1, -2)) * query.shape[-1] ** -0.5
            found = torch.matmul(torch.softmax(weights, -1), value)
        else:
            found = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        return self.outside(found.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norms[0](x))
        return x + self.down(self.between(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    """An embedding, blocks, and an output layer, which may be the embedding."""

    def __init__(self, words=2000, width=128, heads=4, layers=4, written_out=False, checkpointed=False, tied=False):
        super().__init__()
        self.checkpointed = checkpointed
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, written_out=written_out) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head(through(self.blocks, self.words(tokens), self.checkpointed))


class Gpt(nn.Module):
    """GPT-2: token and position embeddings, blocks, and an output layer that is the embedding.

    Args:
        between: the function inside of each block.
        checkpointed: whether each block is a checkpoint.
    """

    def __init__(self, words=50257, length=1024, width=1600, layers=48, heads=25, between=F.gelu, checkpointed=False):
        super().__init__()
        self.checkpointed = checkpointed
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, between, is_causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def features(self, tokens):
        """Return the output of the last block."""
        return through(self.blocks, self.words(tokens) + self.places(torch.arange(tokens.shape[1])), self.checkpointed)

    def forward(self, tokens):
        return F.linear(self.norm(self.features(tokens)), self.words.weight)


def through(blocks, x, checkpointed):
    """Return x after all blocks."""
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
    return x


class Recurrent(nn.Module):
    """LSTM layers and a classifier, of the last element or of each."""

    def __init__(self, inputs, width, outputs, words=None):
        super().__init__()
        self.words = nn.Embedding(words, inputs) if words else None
        self.body, self.head = nn.LSTM(inputs, width, 2, batch_first=True), nn.Linear(width, outputs)

    def forward(self, series):
        return self.head(self.body(series)[0][:, -1] if self.words is None else self.body(self.words(series))[0])


class Residual(nn.Module):
    """Two convolutions beside a shortcut, which has a convolution where the shape changes."""

    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outside) for _ in range(2))
        changes = stride > 1 or inside != outside
        self.beside = nn.Conv2d(inside, outside, 1, stride, bias=False) if changes else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.beside(x) + self.norms[1](self.second(y)))


class Detector(nn.Module):
    """A small RetinaNet: images to (class logits, box offsets) over all positions of all levels of its pyramid.

    A residual backbone of four stages, a feature pyramid over the last three, and two heads that share their weights
    between the levels of the pyramid.
    """

    ANCHORS, CLASSES = 3, 20

    def __init__(self, width=32, blocks=2, checkpointed=False):
        super().__init__()
        self.checkpointed = checkpointed
        sizes = [width, 2 * width, 4 * width, 4 * width]
        self.stem = nn.Conv2d(3, width, 7, 2, 3)
        self.stages = nn.ModuleList(self.stage(i, o, blocks) for i, o in zip([width] + sizes, sizes))
        self.lateral = nn.ModuleList(nn.Conv2d(size, 2 * width, 1) for size in sizes[1:])
        self.smooth = nn.ModuleList(nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in sizes[1:])
        self.classes = self.make_head(2 * width, self.ANCHORS * self.CLASSES)
        self.boxes = self.make_head(2 * width, self.ANCHORS * 4)

    @staticmethod
    def stage(inside, outside, blocks):
        """Return a convolution with a stride, and blocks."""
        entry = nn.Conv2d(inside, outside, 3, 2, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
        return nn.Sequential(*entry, *[Residual(outside, outside) for _ in range(blocks)])

    @staticmethod
    def make_head(width, outputs):
        """Return two convolutions and the one that predicts."""
        body = [layer for _ in range(2) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
        return nn.Sequential(*body, nn.Conv2d(width, outputs, 3, padding=1))

    def run(self, part, x):
        """Run a part of the network, perhaps without keeping what is inside."""
        return checkpoint(part, x, use_reentrant=False) if self.checkpointed else part(x)

    def forward(self, images):
        x, features = self.stem(images), []
        for part in self.stages:
            x = self.run(part, x)
            features.append(x)
        levels, above = [], None
        for feature, lateral, smooth in list(zip(features[1:], self.lateral, self.smooth))[::-1]:
            beside = lateral(feature)
            above = beside if above is None else beside + F.interpolate(above, size=feature.shape[2:])
            levels.append(smooth(above))
        predict = [self.run(self.classes, level).flatten(2) for level in levels]
        boxes = [self.run(self.boxes, level).flatten(2) for level in levels]
        return torch.cat(predict, 2), torch.cat(boxes, 2)


def detector_loss(model, images):
    """Return a focal loss against empty images, and a smooth distance of the boxes."""
    logits, boxes = model(images)
    chance = torch.sigmoid(logits.float())
    focal = (chance.pow(2) * F.softplus(logits.float())).mean()
    return focal + F.smooth_l1_loss(boxes.float(), torch.ones_like(boxes, dtype=torch.float32))
