"""A Dataset that rotates, shifts and enlarges each image in Python, and a small model.

Stands for: the loader is the bottleneck and needs the cores; some workers help, many do not.
"""

import argparse
import time

import numpy as np
import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class AugmentedDigits(Dataset):
    def __init__(self):
        digits = load_digits()
        self.images, self.labels = digits.images.astype(np.float32) / 16, digits.target

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image = ndimage.zoom(self.images[index], 4, order=3)
        image = ndimage.rotate(image, rng.uniform(-15, 15), reshape=False, order=3)
        image = ndimage.shift(image, rng.uniform(-3, 3, 2), order=1)
        image = ndimage.gaussian_filter(image, rng.uniform(0.3, 1.0))
        return torch.from_numpy(image.astype(np.float32)).unsqueeze(0), int(self.labels[index])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(AugmentedDigits(), batch_size=32, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 25, 10),
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
