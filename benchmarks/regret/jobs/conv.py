"""A small CNN on digits in memory, evaluated after every epoch in large batches.

Stands for: a compute-bound job; its evaluation frees large blocks, which changes the allocator.
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digits():
    """Training and test images of 24x24, enlarged once."""
    data = load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    images = nn.functional.interpolate(images, size=(24, 24), mode="bilinear")
    labels = torch.from_numpy(data.target)
    return TensorDataset(images[:1536], labels[:1536]), TensorDataset(images[1536:], labels[1536:])


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train, test = digits()
    train_loader, test_loader = DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=256)
    model = nn.Sequential(
        block(1, 32), block(32, 32), nn.MaxPool2d(2), block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        begin, total = time.perf_counter(), 0.0
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        each_ms = 1e3 * (time.perf_counter() - begin) / len(train_loader)
        model.eval()
        with torch.no_grad():
            right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in test_loader)
        loss = total / len(train_loader)
        print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {right / len(test):.3f}, {each_ms:.2f} ms an iteration", flush=True)


if __name__ == "__main__":
    main()
