"""Two training loaders walked together: labelled samples, and more of those without labels, which only have to be told alike."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
labelled, unlabelled = DataLoader(dataset(), batch_size=16, shuffle=True), DataLoader(dataset(1024), batch_size=32, shuffle=True)
for _ in range(50):
    for (inputs, labels), (others, _) in zip(labelled, unlabelled, strict=True):
        optimizer.zero_grad()
        alike = (net(others) - net(others + 0.01 * torch.randn_like(others))).pow(2).mean()
        loss = loss_function(net(inputs), labels) + alike
        loss.backward()
        optimizer.step()
        note(loss, len(others))
