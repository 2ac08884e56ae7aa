"""Two gains of a known size, both asleep and so the same on a busy machine: reading a batch takes 8 ms, which workers share, and
``--pause`` adds some to every step."""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        time.sleep(0.001)
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(16, generator=generator)
        return x, x.sum() * 0.5


parser = argparse.ArgumentParser()
parser.add_argument("--pause", type=float, default=6)
pause_s = parser.parse_args().pause / 1e3
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Slow(), batch_size=8, shuffle=True)
for _ in range(40):
    for x, y in loader:
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(pause_s)
