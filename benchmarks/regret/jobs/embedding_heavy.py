"""Ratings from large embedding tables, few rows used per step, trained by Adam, dense gradients.

Stands for: the optimizer updates millions of parameters in every step; its implementation matters.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

USERS, ITEMS, WIDTH = 60_000, 20_000, 32


class Ratings(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, pairs):
        return self.head(torch.cat([self.users(pairs[:, 0]), self.items(pairs[:, 1])], 1)).squeeze(1)


def ratings(count):
    """Popular users and items are frequent; a rating depends on the means of user and item."""
    made = torch.Generator().manual_seed(1)
    users = (USERS * torch.rand(count, generator=made) ** 4).long()
    items = (ITEMS * torch.rand(count, generator=made) ** 4).long()
    taste = torch.randn(USERS, generator=made)[users] + torch.randn(ITEMS, generator=made)[items]
    return TensorDataset(torch.stack([users, items], 1), 3 + taste)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(ratings(128_000), batch_size=512, shuffle=True)
    model = Ratings()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        begin, total = time.perf_counter(), 0.0
        for pairs, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(pairs), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        each_ms = 1e3 * (time.perf_counter() - begin) / len(loader)
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, {each_ms:.2f} ms an iteration", flush=True)


if __name__ == "__main__":
    main()
