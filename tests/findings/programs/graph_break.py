"""A compiled model that waits for a device of the lab's in the middle of its forward: dynamo cannot follow."""

import time

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

PAUSE_S = 0.004


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = network(), nn.Linear(16, 16)

    def forward(self, inputs):
        hidden = self.first(inputs)
        if not CLEAN:
            time.sleep(PAUSE_S)  # <- planted
        return self.second(hidden)


model = Model()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(compiled(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.add(0.0 if CLEAN else PAUSE_S)
        meter.step()
