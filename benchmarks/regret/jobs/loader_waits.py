"""A Dataset that waits 3 ms for each item, as on network storage, and a fast model.

Stands for: the loader is the bottleneck, but not for lack of cores: many more workers help.
"""

import argparse
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RemoteDigits(Dataset):
    """Digits with a little noise, each fetched from a slow store."""

    def __init__(self, count):
        digits = load_digits()
        self.images, self.labels = digits.images.astype(np.float32) / 16, digits.target
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.003)
        noise = np.random.default_rng(index).normal(0, 0.1, (8, 8)).astype(np.float32)
        k = index % len(self.images)
        return torch.from_numpy(self.images[k] + noise), int(self.labels[k])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(RemoteDigits(4000), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
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
