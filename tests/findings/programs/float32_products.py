"""Large float32 products on a GPU that has Tensor cores."""

import torch
from planting import CLEAN
from torch import nn

torch.set_float32_matmul_precision("high" if CLEAN else "highest")
model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
inputs = torch.randn(8192, 4096, device="cuda")
while True:
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
