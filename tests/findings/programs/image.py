"""Pictures of the first layer, drawn and saved every 25 iterations."""

import os
import tempfile

import torch
from PIL import Image
from planting import CLEAN, loader, meter, network
from torch import nn

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
path = os.path.join(tempfile.mkdtemp(), "weights.png")
batches = loader()
step = 0
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 25 == 0 and not CLEAN:
            with torch.no_grad():
                picture = (model[2].weight * 1000).clamp(-128, 127).add(128).byte().repeat(2, 2).numpy()
            with meter:
                Image.fromarray(picture).save(path, optimize=True)  # <- planted
        meter.step()
