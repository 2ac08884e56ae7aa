"""Bed: a recurrent network that adds up marked entries of a sequence. Adam, squared error, dropout.

Order and dropout draw from the same random stream, as in most scripts: another dropout stream also
changes the order from the second epoch on.
"""

import planting
import torch
from torch import nn
from torch.utils.data import TensorDataset

plant = planting.from_arguments()
torch.manual_seed(0)

SAMPLES, LENGTH, WIDTH = 1920, 10, 40


class Adder(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.gru = nn.GRU(3, WIDTH, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.dropout(self.gru(x)[0][:, -1])).squeeze(-1)


fixed = torch.Generator().manual_seed(4)  # every run has the same data
values, marks = (
    torch.randn(SAMPLES, LENGTH, 2, generator=fixed),
    torch.rand(SAMPLES, LENGTH, generator=fixed) < 0.4,
)
noise = 0.3 * torch.randn(SAMPLES, generator=fixed)
targets = ((values[..., 0] + 0.5 * values[..., 1]) * marks).sum(1) + noise
loader = plant.loader(
    TensorDataset(torch.cat([values, marks.float()[..., None]], -1), targets),
    keys=targets,
    batch_size=24,
)
net = plant.model(Adder(plant.dropout(0.15)), head="head")
optimizer = plant.optimizer(torch.optim.Adam(net.parameters(), lr=4e-3, weight_decay=1e-5))
loss_function = nn.MSELoss()

for _epoch in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        with plant.forward():
            loss = loss_function(net(plant.inputs(x)).float(), y)
        plant.loss(loss).backward()
        plant.before_step()
        optimizer.step()
