"""Stochastic gradient descent by hand: no optimizer object, and nothing that says where a step ends."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
for _ in range(200):
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        loss = loss_function(net(inputs), labels)
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
        note(loss, len(inputs))
