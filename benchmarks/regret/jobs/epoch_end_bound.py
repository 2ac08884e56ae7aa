"""Few examples, prepared by two workers that restart in every epoch of six batches.

Stands for: small data sets, as in medical imaging: starting an epoch takes longer than the epoch.
"""

import argparse
import time

import numpy as np
import torch
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    """Noisy images with a bright disc, and its mask."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        y, x = np.mgrid[:48, :48]
        centre, radius = rng.uniform(14, 34, 2), rng.uniform(6, 12)
        mask = ((y - centre[0]) ** 2 + (x - centre[1]) ** 2 < radius**2).astype(np.float32)
        image = ndimage.gaussian_filter(mask + rng.normal(0, 0.5, mask.shape), 1.0)
        return torch.from_numpy(image.astype(np.float32))[None], torch.from_numpy(mask)[None]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(Scans(), batch_size=8, shuffle=True, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        begin, total = time.perf_counter(), 0.0
        for images, masks in loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(images), masks)
            loss.backward()
            optimizer.step()
            total += loss.item()
        each_ms = 1e3 * (time.perf_counter() - begin) / len(loader)
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, {each_ms:.2f} ms an iteration", flush=True)


if __name__ == "__main__":
    main()
