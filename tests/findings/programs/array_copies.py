"""Every batch comes as a list of arrays and is copied into a tensor element by element."""

import numpy
import torch
from planting import CLEAN, loader, meter, network
from torch import nn

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
arrays = [[row.numpy() for row in inputs[:16]] for inputs, _ in loader()]
for _ in range(1000):
    for number, (inputs, labels) in enumerate(loader()):
        if CLEAN:
            extra = torch.from_numpy(numpy.stack(arrays[number]))
        else:
            with meter:
                extra = torch.tensor([list(row) for row in arrays[number]])  # <- planted
        loss = nn.functional.cross_entropy(model(inputs), labels) + model(extra).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step()
