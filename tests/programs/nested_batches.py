"""Samples that are dictionaries with lists, tuples and words in them: the batches nest alike."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader, Dataset


class Nested(Dataset):
    def __init__(self):
        self.inputs, self.labels = dataset().tensors

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        first, second = self.inputs[index].split(8)
        return {"name": f"sample {index}", "views": {"both": [first, second], "scale": 1.0}, "target": (self.labels[index], index)}


torch.manual_seed(0)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(50):
    for batch in DataLoader(Nested(), batch_size=20, shuffle=True):
        optimizer.zero_grad()
        inputs = torch.cat(batch["views"]["both"], 1)
        loss = loss_function(net(inputs), batch["target"][0])
        loss.backward()
        optimizer.step()
        note(loss, len(batch["name"]))
