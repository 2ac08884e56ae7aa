"""A validation loader beside the training loader, walked through after every epoch (a short one here)."""

import time

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
validation_loader = DataLoader(dataset(2048), batch_size=256)
training_loader = DataLoader(dataset(), batch_size=32, shuffle=True)
steps = correct = 0
outside_s = 0.0
for _ in range(100):
    net.train()
    for inputs, labels in training_loader:
        optimizer.zero_grad()
        loss = loss_function(net(inputs), labels)
        loss.backward()
        optimizer.step()
        note(loss, len(inputs), outside_s)
        outside_s = 0.0
        steps += 1
        if steps % 20 == 0:
            began = time.perf_counter()
            net.eval()
            with torch.no_grad():
                correct = sum((net(x).argmax(1) == y).sum().item() for x, y in validation_loader)
            net.train()
            outside_s = time.perf_counter() - began
    print(correct)
