"""Weights that are other tensors after each step: nothing that lasts tells that they were updated."""

import torch
from common import dataset, loss_function, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
weights = torch.zeros(16, 4, requires_grad=True)
for _ in range(10_000):
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        loss = loss_function(inputs @ weights, labels)
        loss.backward()
        weights = (weights - 0.1 * weights.grad).detach().requires_grad_()
        note(loss, len(inputs))
