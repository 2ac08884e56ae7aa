"""Products of 4,096 wide layers under bfloat16, which float8 would speed up; 1,024 wide ones are too small for that."""

import torch
from planting import CLEAN
from torch import nn

width = 1024 if CLEAN else 4096
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
inputs = torch.randn(2**26 // width, width, device="cuda")
while True:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(inputs).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
