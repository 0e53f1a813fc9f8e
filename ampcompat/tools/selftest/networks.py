"""Small networks, and the data that the self-test generates for them."""

import torch

CLASSES = 4


class Classifier(torch.nn.Sequential):
    """A convolutional network for images of one channel.

    Args:
        width: channels of the first convolution.
    """

    def __init__(self, width=8):
        layers = []
        for inputs, outputs in ((1, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [
                torch.nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
                torch.nn.BatchNorm2d(outputs),
                torch.nn.ReLU(),
            ]
        layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4 * width, CLASSES)]
        super().__init__(*layers)


class Encoder(torch.nn.Module):
    """Transformer layers on embedded tokens that classify each token. Tokens have the shape (length, batch).

    Args:
        layers: number of layers.
        width: features of a token; there is a head for every 64 of them.
        words: size of the vocabulary.
    """

    def __init__(self, layers, width, words=1000):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        heads = max(width // 64, 1)
        self.layers = torch.nn.ModuleList(
            [torch.nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0) for _ in range(layers)]
        )
        self.head = torch.nn.Linear(width, CLASSES)

    def forward(self, tokens):
        """Return logits of the shape (length, batch, classes)."""
        hidden = self.words(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


class Perceptron(torch.nn.Sequential):
    """Linear layers and layer norm: the order of its sums does not change between runs."""

    def __init__(self):
        super().__init__(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES))


def images(device, step, count=32, size=16):
    """Return (images, classes): each class is a different pattern with noise. The same for the same step."""
    patterns = torch.randn(CLASSES, 1, size, size, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(step + 1)
    classes = torch.randint(0, CLASSES, (count,), generator=generator)
    noise = torch.randn(count, 1, size, size, generator=generator)
    return (patterns[classes] + 2.0 * noise).to(device), classes.to(device)


def tokens(device, count, length):
    """Return (tokens, classes), each of the shape (length, count)."""
    found = torch.randint(0, 1000, (length, count), generator=torch.Generator().manual_seed(0))
    return found.to(device), (found % CLASSES).to(device)


def features_and_classes(device, step, count=32):
    """Return (inputs of 16 features, classes)."""
    generator = torch.Generator().manual_seed(step + 1)
    inputs = torch.randn(count, 16, generator=generator)
    return inputs.to(device), inputs[:, :CLASSES].argmax(1).to(device)
