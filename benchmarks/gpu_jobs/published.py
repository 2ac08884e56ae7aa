"""Three workloads with published speed-ups, as one ordinary program: float32, AdamW.

    python published.py WORKLOAD [--steps 20000] [--timed 200] [--loader]

    resnet50      224x224 images, batch 64
    resnet18      32x32 images, batch 128
    transformer   6 encoder layers of width 512, 128 tokens, batch 32; a class for each sequence

Batches are kept on the device; with --loader, a DataLoader with torch's defaults makes them. Prints
the rate of the last --timed steps at the end, synchronizing with the device before and after them.
"""

import argparse
import itertools
import time

import torch
from conv_net import Images
from resnet50 import resnet50
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

TOKENS = 32_000
BATCHES = 16  # kept on the device


class Sequences(Dataset):
    """Tokens of which half come from a range reserved for the class."""

    def __init__(self, length, count=4096):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.arange(count) % 10
        own = 1000 * self.labels[:, None] + torch.randint(
            1000, (count, length), generator=generator
        )
        any_ = torch.randint(TOKENS, (count, length), generator=generator)
        self.tokens = torch.where(torch.rand(count, length, generator=generator) < 0.5, own, any_)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], self.labels[index]


class Transformer(nn.Module):
    def __init__(self, layers, width, length):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens):
        return self.head(self.encoder(self.tokens(tokens) + self.places).mean(dim=1))


class Basic(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
        )  # fmt: skip

    def forward(self, x):
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet18(width=64, classes=10):
    layers = [
        nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width),
        nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1),
    ]  # fmt: skip
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        layers += [Basic(inputs, outputs, 2 if stage else 1), Basic(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=("resnet50", "resnet18", "transformer"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--timed", type=int, default=200)
    parser.add_argument("--loader", action="store_true")
    parser.add_argument("--batch", type=int, help="default: see above, and so for the others")
    parser.add_argument("--size", type=int, help="of an image's side, or tokens in a sequence")
    parser.add_argument("--width", type=int, help="64 for the ResNets, 512 for the Transformer")
    parser.add_argument("--layers", type=int, default=6, help="of the Transformer")
    return parser


def workload(options):
    """(Model, data set); fills in the sizes left out."""
    sizes = {"resnet50": (64, 224, 64), "resnet18": (128, 32, 64), "transformer": (32, 128, 512)}
    batch, size, width = sizes[options.workload]
    options.batch, options.size = options.batch or batch, options.size or size
    width = options.width or width
    torch.manual_seed(0)
    if options.workload == "transformer":
        return Transformer(options.layers, width, options.size), Sequences(options.size)
    return (resnet50 if options.workload == "resnet50" else resnet18)(width), Images(options.size)


def batches(options, dataset, device):
    """Endless inputs and labels on the device."""

    def on_device(inputs, labels):
        inputs, labels = inputs.to(device), labels.to(device)
        return (inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs), labels

    if not options.loader:
        items = iter(dataset[n % len(dataset)] for n in range(BATCHES * options.batch))
        lists = [list(itertools.islice(items, options.batch)) for _ in range(BATCHES)]
        yield from itertools.cycle([on_device(*default_collate(items)) for items in lists])
    loader = DataLoader(dataset, batch_size=options.batch, shuffle=True, drop_last=True)
    while True:
        for batch in loader:
            yield on_device(*batch)


def train(step, ready, options, device):
    """Call ``step(inputs, labels)``, which trains and returns the loss, and print the rate."""

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    for number in range(1, options.steps + 1):
        if number == max(1, options.steps - options.timed + 1):
            wait()
            began = time.perf_counter()
        loss = step(*next(ready))
        if number % 50 == 0:
            print(f"step {number} loss {loss.item():.4f}", flush=True)
    wait()
    samples = min(options.steps, options.timed) * options.batch
    print(f"{samples / (time.perf_counter() - began):.6g} samples/s", flush=True)


def main():
    options = arguments().parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, dataset = workload(options)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(inputs, labels):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    train(step, batches(options, dataset, device), options, device)


if __name__ == "__main__":
    main()
