"""Something that only now and then takes long: a lookup with retries, at irregular steps."""

import random
import time

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

SLOW = set(random.Random(5).sample(range(100_000), 5_000))  # in no rhythm


def look_up(step):
    if step in SLOW and not CLEAN:
        with meter:
            time.sleep(0.04)  # <- planted


model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
step = 0
for _ in range(1000):
    for inputs, labels in batches:
        look_up(step)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        meter.step()
