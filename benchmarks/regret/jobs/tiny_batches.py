"""Eight rows per step, a small residual MLP: tabular data, row-wise collation, clipping, loss read.

Stands for: tiny operations; Python, the collation and the number of calls take the time.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def table(rows, columns):
    """Rows whose target is a smooth function of a few of their columns, and a little noise."""
    made = torch.Generator().manual_seed(1)
    x = torch.randn(rows, columns, generator=made)
    weights = torch.randn(columns, 8, generator=made) / columns**0.5
    y = torch.tanh(x @ weights).sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1, generator=made)
    return TensorDataset(x, y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(table(4000, 32), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), *(Residual(64) for _ in range(10)), nn.LayerNorm(64), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        begin, total = time.perf_counter(), 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        each_ms = 1e3 * (time.perf_counter() - begin) / len(loader)
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, {each_ms:.2f} ms an iteration", flush=True)


if __name__ == "__main__":
    main()
