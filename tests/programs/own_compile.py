"""A job that compiles its model itself (with the cheapest backend, so that no compiler is needed)."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = torch.compile(model(), backend="eager")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(50):
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = loss_function(net(inputs), labels)
        loss.backward()
        optimizer.step()
        note(loss, len(inputs))
