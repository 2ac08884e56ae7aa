"""A job that compiles its model and manages mixed precision itself, as nanoGPT does."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = torch.compile(model(), backend="eager")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(50):
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_function(net(inputs), labels)
        loss.backward()
        optimizer.step()
        note(loss, len(inputs))
