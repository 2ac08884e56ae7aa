"""torch-geometric: its own DataLoader class, batches that are one graph, and an evaluation on the training loader itself."""

import json
import sys
import time

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

steps, out = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(1)


def graph(_):
    nodes = int(torch.randint(8, 20, ()))
    x = torch.randn(nodes, 8)
    return Data(x=x, edge_index=torch.randint(0, nodes, (2, 3 * nodes)), y=(x.mean() > 0).long().reshape(1))


loader = DataLoader([graph(n) for n in range(320)], batch_size=16, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = GCNConv(8, 32), GCNConv(32, 32), nn.Linear(32, 2)

    def forward(self, batch):
        x = self.first(batch.x, batch.edge_index).relu()
        x = self.second(x, batch.edge_index).relu()
        return self.head(global_mean_pool(x, batch.batch))


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)


def right():
    model.eval()
    with torch.no_grad():
        return sum(int((model(batch).argmax(1) == batch.y).sum()) for batch in loader)


losses, away_s = [], 0.0
began = time.perf_counter()
while len(losses) < steps:
    model.train()
    for batch in loader:
        loss = nn.functional.cross_entropy(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == steps:
            break
    left = time.perf_counter()
    right()
    away_s += time.perf_counter() - left
loop_s = time.perf_counter() - began
with open(f"{out}/losses.json", "w") as file:
    json.dump({"losses": losses, "loop_s": loop_s, "away_s": away_s}, file)
