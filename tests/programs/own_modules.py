"""A job whose directory has its own `trials.py` and `search_spaces/`: ours must not shadow them, nor they ours."""

import search_spaces.mine
import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

import trials

assert trials.OWNER == "the job" and search_spaces.mine.OWNER == "the job"

torch.manual_seed(0)
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(50):
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = loss_function(net(inputs), labels)
        loss.backward()
        optimizer.step()
        note(loss, len(inputs))
