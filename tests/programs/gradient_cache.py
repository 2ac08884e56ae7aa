"""A contrastive loss over more samples than one pass takes (GradCache): all chunks without gradients, the loss and its gradient at their
outputs, then each chunk again, to take that gradient on into the model."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def differentiated(outputs):
    kept = [output.requires_grad_() for output in outputs]
    left, right = torch.cat(kept).chunk(2)
    loss = loss_function(left @ right.T, torch.arange(len(left)))
    loss.backward()
    return loss.detach(), [output.grad for output in kept]


for _ in range(50):
    for inputs, _ in DataLoader(dataset(), batch_size=64, shuffle=True):
        optimizer.zero_grad()
        chunks = [part for view in (inputs, inputs + 0.1 * torch.randn_like(inputs)) for part in view.split(16)]
        with torch.no_grad():
            outputs = [net(chunk).detach() for chunk in chunks]
        loss, gradients = differentiated(outputs)
        outputs.clear()
        for chunk, gradient in zip(chunks, gradients, strict=True):
            torch.dot(net(chunk).flatten(), gradient.flatten()).backward()
        optimizer.step()
        note(loss, len(inputs))
