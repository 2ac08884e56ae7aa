"""Workers would be started afresh, and nothing here is kept from running again in each of them: no `__main__` guard."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.multiprocessing.set_start_method("spawn", force=True)
torch.manual_seed(0)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(50):
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = loss_function(net(inputs), labels)
        loss.backward()
        optimizer.step()
        note(loss, len(inputs))
