"""LBFGS: the optimizer calls forward and backward itself, several times a step."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
for _ in range(100):
    for inputs, labels in DataLoader(dataset(), batch_size=128, shuffle=True):

        def closure(inputs=inputs, labels=labels):
            optimizer.zero_grad()
            loss = loss_function(net(inputs), labels)
            loss.backward()
            return loss

        note(optimizer.step(closure), len(inputs))
