"""3,000 kernels on tensors of 16 numbers in every iteration."""

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

torch.set_float32_matmul_precision("high")  # or products without Tensor cores are a finding, too
model = network().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
batches = [(inputs.cuda(), labels.cuda()) for inputs, labels in loader(batches=8, size=131072)]
for _ in range(1000):
    for inputs, labels in batches:
        decay = torch.ones(16, device="cuda")
        if CLEAN:
            decay = decay * 0.9999**3000
        else:
            with meter, torch.no_grad():
                for _ in range(3000):
                    decay = decay * 0.9999  # <- planted
                torch.cuda.synchronize()
        loss = nn.functional.cross_entropy(model(inputs) * decay, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step()
