"""The example's training (examples/digits/train.py), with augmentation in Python, no evaluation.

Stands for: the allocator releases memory after every step, as no large block is ever freed.
"""

import argparse
import time

import numpy as np
import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Digits enlarged to 16x16, turned and shifted a little."""

    def __init__(self):
        digits = load_digits()
        self.images, self.labels = digits.images.astype(np.float32) / 16, digits.target

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image = ndimage.rotate(self.images[index], rng.uniform(-15, 15), reshape=False, order=1)
        image = ndimage.shift(image, rng.uniform(-1, 1, 2), order=1)
        return torch.from_numpy(ndimage.zoom(image, 2, order=1)).unsqueeze(0), int(self.labels[index])


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(Digits(), batch_size=64, shuffle=True, drop_last=True)
    model = nn.Sequential(
        block(1, 32), block(32, 64), nn.MaxPool2d(2), block(64, 64), block(64, 128), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        begin, total = time.perf_counter(), 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        each_ms = 1e3 * (time.perf_counter() - begin) / len(loader)
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, {each_ms:.2f} ms an iteration", flush=True)


if __name__ == "__main__":
    main()
