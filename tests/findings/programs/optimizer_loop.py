"""AdamW over 150 small parameters, one by one. What it costs is what it takes beyond a fused step, timed beforehand on a copy."""

import copy
import statistics
from time import perf_counter

import torch
from planting import CLEAN, loader, meter, network
from torch import nn


class Scales(nn.Module):
    """A network with many small parameters."""

    def __init__(self):
        super().__init__()
        self.layers = network()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(16)) for _ in range(150)])

    def forward(self, inputs):
        return self.layers(inputs) * torch.stack(list(self.scales)).mean(0)


def fused_step_s(model):
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-3, fused=True)
    times = []
    for _ in range(15):
        began = perf_counter()
        optimizer.step()
        times.append(perf_counter() - began)
    return statistics.median(times)


model, batches = Scales(), loader(size=256)
fused_s = fused_step_s(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=CLEAN, foreach=False)  # <- planted
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        began = perf_counter()
        optimizer.step()
        meter.add(perf_counter() - began - fused_s)
        meter.step()
