"""A graph of small objects that point at each other, made and dropped in every step: the collector has to find it."""

import gc
import time

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

began = 0.0


def timed(phase, info):
    global began
    if phase == "start":
        began = time.perf_counter()
    else:
        meter.add(time.perf_counter() - began)


gc.callbacks.append(timed)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        graph = [[] for _ in range(0 if CLEAN else 8000)]  # <- planted
        for node in graph:
            node.append(graph)
        meter.step()
