"""Sequences of tokens with something to learn: each follows from the one before."""

import torch


class Words(torch.utils.data.Dataset):
    def __init__(self, count=512, length=24, vocabulary=96):
        generator = torch.Generator().manual_seed(7)
        rows = torch.randint(0, vocabulary, (count, length), generator=generator)
        for at in range(1, length):
            follows = torch.rand(count, generator=generator) < 0.8
            rows[follows, at] = (rows[follows, at - 1] * 5 + 3) % vocabulary
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}
