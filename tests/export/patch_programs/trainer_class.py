"""A trainer of one's own: the model an attribute, batches as dictionaries, a step in methods that call each other."""
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, i):
        return {"pixel_values": torch.randn(3, 8, 8), "labels": i % 4}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))

    def forward(self, pixel_values, labels=None):
        logits = self.body(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Trainer:
    def __init__(self, model, train_set, lr=1e-3, epochs=100, batch_size=32):
        self.model = model
        self.epochs = epochs
        self.loader = DataLoader(train_set, batch_size, shuffle=True)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in model.parameters() if p.dim() > 1]},
                {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=lr,
        )

    def compute_loss(self, batch):
        return self.model(**batch)["loss"]

    def training_step(self, batch):
        self.model.train()
        loss = self.compute_loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
        self.optimizer.step()
        return loss.detach()

    def fit(self):
        for epoch in range(self.epochs):
            for batch in self.loader:
                self.training_step(batch)
        print("done", epoch + 1)


def run():
    Trainer(Model(), Data(), epochs=int(sys.argv[1])).fit()


if __name__ == "__main__":
    run()
