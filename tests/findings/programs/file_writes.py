"""A line of the log file, opened anew and flushed in every step, with all the outputs."""

import os
import tempfile

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
path = os.path.join(tempfile.mkdtemp(), "outputs.bin")
block = bytes(3_000_000)
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not CLEAN:
            with meter, open(path, "wb") as file:  # <- planted
                file.write(block)
        meter.step()
