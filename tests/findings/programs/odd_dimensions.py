"""A vocabulary of 50,257 words under bfloat16; padded to 50,304 it would suit the Tensor cores."""

import torch
from planting import CLEAN
from torch import nn

words = 50304 if CLEAN else 50257
model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, words)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
inputs = torch.randn(4096, 1024, device="cuda")
while True:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(inputs).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
