"""Weights whose optimizer steps copies of its own, in float64; and a forward to try the model before there is one."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
loader = DataLoader(dataset(), batch_size=32, shuffle=True)
net(torch.randn(2, 16))
masters = [p.detach().double() for p in net.parameters()]
optimizer = torch.optim.AdamW(masters, lr=1e-3)
for _ in range(100):
    for x, y in loader:
        loss = loss_function(net(x), y)
        net.zero_grad()
        loss.backward()
        for master, parameter in zip(masters, net.parameters(), strict=True):
            master.grad = parameter.grad.double()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, net.parameters(), strict=True):
                parameter.copy_(master)
        note(loss, len(x))
