"""A potential whose forces are its gradient, in float64. Evaluation needs gradients, too: its parameters are frozen meanwhile."""

import time

import torch
from common import dataset, note
from torch import nn
from torch.utils.data import DataLoader


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, positions, training):
        positions.requires_grad_()
        energy = self.net(positions).sum()
        if training or len(positions) % 2:
            (forces,) = torch.autograd.grad(-energy, positions, create_graph=training)
            return forces
        (-energy).backward()
        return positions.grad


torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
potential = Potential()
optimizer = torch.optim.AdamW(potential.parameters(), lr=1e-3)
training_loader = DataLoader(dataset(), batch_size=32, shuffle=True)
validation_loader = DataLoader(dataset(8192), batch_size=64)
steps = 0
outside_s = 0.0
for _ in range(100):
    for positions, _ in training_loader:
        forces = potential(positions, training=True)
        loss = (forces - positions.detach().sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note(loss, len(positions), outside_s)
        outside_s = 0.0
        steps += 1
        if steps % 10 == 0:
            began = time.perf_counter()
            for parameter in potential.parameters():
                parameter.requires_grad = False
            for number, (positions, _) in enumerate(validation_loader):  # by grad and by backward
                potential(positions[number % 2 :], training=False)
            for parameter in potential.parameters():
                parameter.requires_grad = True
            outside_s = time.perf_counter() - began
