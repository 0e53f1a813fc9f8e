"""Small networks, and the data that the self-test generates for them."""

import torch

CLASSES = 4


class Classifier(torch.nn.Sequential):
    """A convolutional network for images of one channel."""

    def __init__(self):
        layers = []
        for inputs, outputs in ((1, 8), (8, 16), (16, 32)):
            layers += [
                torch.nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
                torch.nn.BatchNorm2d(outputs),
                torch.nn.ReLU(),
            ]
        layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, CLASSES)]
        super().__init__(*layers)


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


def features_and_classes(device, step, count=32):
    """Return (inputs of 16 features, classes)."""
    generator = torch.Generator().manual_seed(step + 1)
    inputs = torch.randn(count, 16, generator=generator)
    return inputs.to(device), inputs[:, :CLASSES].argmax(1).to(device)
