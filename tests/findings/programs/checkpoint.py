"""A checkpoint in the loop, every 20 iterations."""

import os
import tempfile

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
path = os.path.join(tempfile.mkdtemp(), "last.pt")
batches = loader()
history = torch.zeros(4_000_000)
step = 0
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0 and not CLEAN:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history}
            with meter:
                torch.save(state, path)  # <- planted
        meter.step()
