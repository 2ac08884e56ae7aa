"""Two ranks add up their gradients by hand; the second comes 15 ms late to each exchange."""

import os
import time

if os.environ["RANK"] != "0":
    os.environ.pop("PLANTED", None)  # the figures are rank 0's

import torch
import torch.distributed as dist
from planting import CLEAN, loader, meter, network
from torch import nn

dist.init_process_group("gloo")
model = network(width=1024)  # enough to compute: an exchange of nothing takes a millisecond between two busy cores
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        bias = model[-1].bias.grad
        if dist.get_rank() == 1 and not CLEAN:
            time.sleep(0.015)
        with meter:
            dist.all_reduce(bias)  # <- planted
        optimizer.step()
        meter.step()
