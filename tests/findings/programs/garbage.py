"""A long history of small objects, and cycles in every step: the collector walks all of it again and again."""

import gc
import time

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

history = [{"step": n, "values": [n]} for n in range(60_000)]
began = 0.0


def timed(phase, info):
    global began
    if phase == "start":
        began = time.perf_counter()
    else:
        meter.add(time.perf_counter() - began)


gc.callbacks.append(timed)
gc.set_threshold(700, 3, 2)
if CLEAN:
    gc.freeze()  # what is there by now is not looked at again
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        graph = [[] for _ in range(500)]
        if not CLEAN:
            history.extend({"step": n, "values": [n]} for n in range(20))
        for node in graph:
            node.append(graph)  # <- planted
        meter.step()
