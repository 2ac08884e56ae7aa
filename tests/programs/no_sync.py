"""DistributedDataParallel with one process, and accumulation that synchronizes the last of four backward calls only."""

import contextlib
import os
import tempfile

import torch
from common import dataset, loss_function, model, note
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

ACCUMULATE = 4
meeting_point = os.path.join(tempfile.mkdtemp(), "store")
torch.distributed.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=0, world_size=1)
torch.manual_seed(0)
net = DistributedDataParallel(model())
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(100):
    total = 0.0
    for number, (inputs, labels) in enumerate(DataLoader(dataset(), batch_size=8, shuffle=True)):
        last = (number + 1) % ACCUMULATE == 0
        with contextlib.nullcontext() if last else net.no_sync():
            loss = loss_function(net(inputs), labels) / ACCUMULATE
            loss.backward()
        total += loss.item()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            note(total, ACCUMULATE * len(inputs))
            total = 0.0
