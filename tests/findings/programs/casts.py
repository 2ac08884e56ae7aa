"""bfloat16 autocast, and wide activations cast to float32 between its layers: up and down again, in backward the other way round."""

import statistics
from time import perf_counter

import torch
from planting import CLEAN, loader, meter
from torch import nn


def round_trip_s(*shape):
    """Up and down, of a tensor like the activations."""
    times = []
    for _ in range(15):
        tensor = torch.randn(shape).bfloat16()
        began = perf_counter()
        tensor.float().bfloat16()
        times.append(perf_counter() - began)
    return statistics.median(times)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 256), nn.Linear(256, 16)

    def forward(self, inputs):
        hidden = self.first(inputs)
        if not CLEAN:
            hidden = hidden.float()  # <- planted
        return self.second(hidden)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = 8192
batches = loader(batches=4, size=rows, features=32)
cast_s = 2 * round_trip_s(rows, 256)
for _ in range(1000):
    for inputs, labels in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.add(0.0 if CLEAN else cast_s)
        meter.step()
