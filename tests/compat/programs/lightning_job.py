"""PyTorch Lightning: loaders built in the module's hooks, validation after every epoch, a schedule, a CSV log."""

import json
import sys
import time

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps, out = int(sys.argv[1]), sys.argv[2]
lightning.seed_everything(1)
inputs = torch.randn(400, 32)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.away_s = 0.0
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 4))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        time.sleep(0.1)
        self.away_s += 0.1
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 20)]

    def train_dataloader(self):
        return DataLoader(data, batch_size=16, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(data, batch_size=100)


model, began = Classifier(), time.perf_counter()
lightning.Trainer(
    max_steps=steps, max_epochs=-1, accelerator="cpu", logger=CSVLogger(out), log_every_n_steps=1, enable_progress_bar=False,
    enable_checkpointing=False, enable_model_summary=False,
).fit(model)
with open(f"{out}/times.json", "w") as file:
    json.dump({"loop_s": time.perf_counter() - began, "away_s": model.away_s}, file)
