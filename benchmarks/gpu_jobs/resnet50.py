"""ResNet-50 on 224x224 images, float32, SGD: a typical first script with common loader settings.

    python resnet50.py [--steps 20000] [--size 224] [--batch 64] [--width 64]

Four workers deliver the images as bytes, in pinned memory: the GPU limits this job.
"""

import argparse

import torch
from conv_net import Images
from torch import nn
from torch.utils.data import DataLoader


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut; the output has four times as many channels."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, x):
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet50(width=64, classes=10):
    """25.6 million parameters with 1,000 classes."""
    layers = [nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    inputs = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width * 2**stage, stride=2 if stage and not block else 1))
            inputs = 4 * width * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = resnet50(options.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(
        Images(options.size), batch_size=options.batch, shuffle=True, num_workers=4, persistent_workers=True,
        pin_memory=device == "cuda", drop_last=True,
    )  # fmt: skip
    step = 0
    while step < options.steps:
        for images, labels in loader:
            images, labels = images.to(device).float() / 255, labels.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0 or step == options.steps:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break


if __name__ == "__main__":
    main()
