"""A network of radial basis functions with broadcasting: each step makes large temporaries.

Stands for: page faults and memory traffic; an allocator that keeps memory, and fusion, help.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class RadialBasis(nn.Module):
    def __init__(self, columns, centres):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(centres, columns))
        self.widths = nn.Parameter(torch.full((centres, columns), 0.5))
        self.head = nn.Linear(centres, 1)

    def forward(self, x):
        distance = (x[:, None, :] - self.centres) * self.widths  # (batch, centres, columns)
        return self.head(torch.exp(-(distance**2).sum(2) / 2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    made = torch.Generator().manual_seed(1)
    x = torch.randn(32_768, 8, generator=made)
    y = torch.sin(x[:, :1] + x[:, 1:2]) + torch.cos(2 * x[:, 2:3]) + 0.1 * torch.randn(len(x), 1, generator=made)
    loader = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True)
    model = RadialBasis(8, 768)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        begin, total = time.perf_counter(), 0.0
        for rows, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(rows), targets)
            loss.backward()
            optimizer.step()
            total += loss.item()
        each_ms = 1e3 * (time.perf_counter() - begin) / len(loader)
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, {each_ms:.2f} ms an iteration", flush=True)


if __name__ == "__main__":
    main()
