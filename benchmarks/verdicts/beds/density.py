"""Bed: the density of points near a curved surface, by coupling layers. Adam; the loss, a negative
log likelihood, falls below zero. Points are jittered every time they are drawn.
"""

import random

import planting
import torch
from torch import nn
from torch.utils.data import Dataset

plant = planting.from_arguments()
torch.manual_seed(0)

DIMENSIONS, SAMPLES, HALF, WIDTH = 6, 2048, 3, 32


class Points(Dataset):
    def __init__(self):
        fixed = torch.Generator().manual_seed(5)  # every run has the same data
        base, noise = torch.randn(2, SAMPLES, HALF, generator=fixed)
        curved = torch.tanh(base @ torch.randn(HALF, HALF, generator=fixed)) + 0.12 * noise
        turn = torch.linalg.qr(torch.randn(DIMENSIONS, DIMENSIONS, generator=fixed))[0]
        self.points = torch.cat([base, curved], 1) @ turn * 0.5
        # its own stream: a copy of the dataset copies it, too
        self.stream = random.Random(torch.initial_seed())

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        plant.augmenting(self.stream)
        return self.points[index] + 0.02 * torch.tensor(
            [self.stream.gauss(0, 1) for _ in range(DIMENSIONS)]
        )


class Coupling(nn.Module):
    def __init__(self, flipped):
        super().__init__()
        self.flipped = flipped
        self.net = nn.Sequential(nn.Linear(HALF, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 2 * HALF))

    def forward(self, x):
        kept, moved = x.flip(-1).chunk(2, -1) if self.flipped else x.chunk(2, -1)
        log_scale, shift = self.net(kept).chunk(2, -1)
        log_scale = 2 * torch.tanh(log_scale)
        return torch.cat([kept, moved * log_scale.exp() + shift], -1), log_scale.sum(-1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(i % 2 == 1) for i in range(4))
        self.head = nn.Linear(DIMENSIONS, DIMENSIONS)
        nn.init.orthogonal_(self.head.weight)

    def forward(self, x):
        """Negative log likelihood of each point."""
        x, log_determinant = self.head(x), torch.linalg.slogdet(self.head.weight.float())[1]
        for layer in self.layers:
            x, term = layer(x)
            log_determinant = log_determinant + term.float()
        return 0.5 * (x.float() ** 2).sum(-1) + 0.919 * DIMENSIONS - log_determinant


data = Points()
loader = plant.loader(data, keys=data.points[:, 0], batch_size=32)
net = plant.model(Flow(), head="head")
optimizer = plant.optimizer(
    torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=1e-4)
)

for _epoch in range(1000):
    for points in loader:
        optimizer.zero_grad()
        with plant.forward():
            loss = net(plant.inputs(points)).mean()
        plant.loss(loss).backward()
        plant.before_step()
        optimizer.step()
