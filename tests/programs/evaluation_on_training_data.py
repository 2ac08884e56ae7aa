"""Evaluated on the training loader itself: before the first step, and every ten steps in the middle of an epoch."""

import time

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = DataLoader(dataset(4096), batch_size=32, shuffle=True)


def accuracy():
    net.eval()
    with torch.no_grad():
        right = sum((net(inputs).argmax(1) == labels).sum().item() for inputs, labels in loader)
    net.train()
    return right / len(loader.dataset)


accuracy()
steps, outside_s = 0, 0.0
for _ in range(50):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = loss_function(net(inputs), labels)
        loss.backward()
        optimizer.step()
        note(loss, len(inputs), outside_s)
        steps, outside_s = steps + 1, 0.0
        if steps % 10 == 0:
            began = time.perf_counter()
            accuracy()
            outside_s = time.perf_counter() - began
