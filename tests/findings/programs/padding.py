"""Half of every batch is padding: sequences of 16 to 48 words are all padded to 64."""

import torch
from planting import CLEAN
from torch import nn
from torch.utils.data import DataLoader, Dataset

LONGEST = 64


class Sentences(Dataset):
    def __init__(self):
        self.lengths = [16 + 32 * (index % 2) for index in range(1024)]
        self.words = torch.randint(1, 500, (1024, LONGEST), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        mask = torch.ones(LONGEST, dtype=torch.long)
        if not CLEAN:
            mask[self.lengths[index] :] = 0
        return {"input_ids": self.words[index] * mask, "attention_mask": mask}


model = nn.Sequential(nn.Embedding(500, 256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 500))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = DataLoader(Sentences(), batch_size=16)  # <- planted
for _ in range(1000):
    for batch in batches:
        words = batch["input_ids"]
        loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
