"""Each sample takes 2 ms to read, and the training process reads them all itself."""

import time

import torch
from planting import CLEAN, meter, network
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self):
        self.ready = torch.randn(1024, 256, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.ready)

    def __getitem__(self, index):
        if not CLEAN:
            with meter:
                time.sleep(0.002)
        return self.ready[index], index % 16


model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = DataLoader(Pictures(), batch_size=8)  # <- planted
for _ in range(1000):
    for inputs, labels in batches:
        inputs = inputs.repeat(32, 1)
        loss = nn.functional.cross_entropy(model(inputs), labels.repeat(32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step()
