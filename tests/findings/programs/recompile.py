"""A compiled model with a counter in it: each new value is compiled again."""

from time import perf_counter

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

torch._dynamo.config.recompile_limit = 1000
torch._dynamo.config.accumulated_recompile_limit = 1000


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.phase = network(), 0

    def forward(self, inputs):
        return self.layers(inputs) * (1.0 + self.phase)  # <- planted


model = Model()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batches, step = loader(), 0
for _ in range(1000):
    for inputs, labels in batches:
        step += 1
        changed = step % 37 == 0 and not CLEAN
        model.phase += changed

        began = perf_counter()
        loss = nn.functional.cross_entropy(compiled(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        if changed:
            meter.add(perf_counter() - began)
        optimizer.step()
        meter.step()
