"""Thousands of small objects that hold themselves, in every step: only the collector can free them."""

import gc
import time

import torch
from planting import CLEAN, loader, meter, network
from torch import nn


def tangle(count):
    for _ in range(count):
        node = [None]  # <- planted
        node[0] = node


def seconds_of_tangles():
    began = time.perf_counter()
    tangle(8_000)
    return time.perf_counter() - began


gc.disable()
usual = sorted(seconds_of_tangles() for _ in range(15))[7]  # without the collector
gc.enable()
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not CLEAN:
            meter.add(seconds_of_tangles() - usual)
        meter.step()
