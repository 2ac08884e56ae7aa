"""A job whose autocast is inside what it compiles, as accelerate and the Trainer of transformers have it."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
eager = model()
eager.forward = torch.autocast("cpu", dtype=torch.bfloat16)(eager.forward)
net = torch.compile(eager, backend="eager")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(50):
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = loss_function(net(inputs).float(), labels)
        loss.backward()
        optimizer.step()
        note(loss, len(inputs))
