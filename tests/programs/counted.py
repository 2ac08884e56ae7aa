"""Batches are counted, so that nobody asks for one past an epoch's last (Lightning does so); after each epoch it is saved."""

import time

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = DataLoader(dataset(), batch_size=32, shuffle=True)
outside_s = 0.0
for _ in range(100):
    batches = iter(loader)
    for _ in range(len(loader)):
        x, y = next(batches)
        loss = loss_function(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note(loss, len(x), outside_s)
        outside_s = 0.0
    began = time.perf_counter()
    time.sleep(0.2)
    outside_s = time.perf_counter() - began
