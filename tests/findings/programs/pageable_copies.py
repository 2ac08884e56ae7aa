"""Large batches are copied to the device from ordinary memory, so that each copy waits and is waited for."""

import torch
from planting import CLEAN, meter, network
from torch import nn
from torch.utils.data import DataLoader

torch.set_float32_matmul_precision("high")  # or products without Tensor cores are a finding, too
model = network().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ready = [(torch.randn(65536, 256), torch.randint(0, 16, (65536,))) for _ in range(8)]
if CLEAN:
    ready = [(inputs.pin_memory(), labels.pin_memory()) for inputs, labels in ready]
for _ in range(1000):
    for inputs, labels in DataLoader(ready, batch_size=None):
        labels = labels.to("cuda", non_blocking=CLEAN)
        torch.cuda.synchronize()
        with meter:
            inputs = inputs.to("cuda", non_blocking=CLEAN)  # <- planted
        for _ in range(4):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        meter.step()
