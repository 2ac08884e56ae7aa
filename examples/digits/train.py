"""Train a small convolutional network on handwritten digits.

An ordinary script with ordinary habits: a Dataset that augments each image in Python, a DataLoader left at its defaults, float32
throughout. It knows nothing of autotune.

    python train.py --epochs 400
"""

import argparse

import numpy as np
import torch
from scipy import ndimage
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """scikit-learn's 8x8 digits, enlarged to 16x16 and, for training, turned and shifted a little."""

    def __init__(self, images, labels, augment):
        self.images, self.labels, self.augment = images.astype(np.float32) / 16, labels, augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            rng = np.random.default_rng(index)
            image = ndimage.rotate(image, rng.uniform(-15, 15), reshape=False, order=1)
            image = ndimage.shift(image, rng.uniform(-1, 1, 2), order=1)
        image = ndimage.zoom(image, 2, order=1)
        return torch.from_numpy(image).unsqueeze(0), int(self.labels[index])


def build_model():
    def block(inputs, outputs):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    return nn.Sequential(
        block(1, 32), block(32, 64), nn.MaxPool2d(2), block(64, 64), block(64, 128), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, 10),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    digits = load_digits()
    train = Digits(digits.images[:1500], digits.target[:1500], augment=True)
    test = Digits(digits.images[1500:], digits.target[1500:], augment=False)
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test, batch_size=args.batch_size)

    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        model.eval()
        with torch.no_grad():
            right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in test_loader)
        print(f"epoch {epoch}: loss {total / len(train):.4f}, test accuracy {right / len(test):.3f}", flush=True)


if __name__ == "__main__":
    main()
