"""A plain loop with accelerate: gradient accumulation, a learning-rate schedule."""

import json
import sys
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps, out = int(sys.argv[1]), sys.argv[2]
set_seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
inputs = torch.randn(512, 32)
loader = DataLoader(TensorDataset(inputs, inputs[:, :4].argmax(1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=1000)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
criterion = nn.CrossEntropyLoss()

losses, micro = [], []
began = time.perf_counter()
while len(losses) < steps:
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = criterion(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        micro.append(loss.item())
        if accelerator.sync_gradients:
            losses.append(sum(micro) / len(micro))
            micro = []
        if len(losses) == steps:
            break
loop_s = time.perf_counter() - began
with open(f"{out}/losses.json", "w") as file:
    json.dump({"losses": losses, "loop_s": loop_s}, file)
