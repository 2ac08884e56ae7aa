"""A student that learns what its teacher says, and both evaluated on other data every ten steps."""

import time

import torch
from common import dataset, loss_function, model, note
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
teacher, student = model(width=256).eval().requires_grad_(False), model()
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
loader = DataLoader(dataset(), batch_size=32, shuffle=True)
held_out = DataLoader(dataset(1024), batch_size=64)
steps, outside_s = 0, 0.0
for _ in range(50):
    for inputs, labels in loader:
        with torch.no_grad():
            wanted = teacher(inputs).softmax(1)
        outputs = student(inputs)
        loss = loss_function(outputs, labels) + nn.functional.kl_div(outputs.log_softmax(1), wanted, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note(loss, len(inputs), outside_s)
        steps, outside_s = steps + 1, 0.0
        if steps % 10 == 0:
            began = time.perf_counter()
            student.eval()
            with torch.no_grad():
                for others, _ in held_out:
                    (teacher(others) - student(others)).abs().mean()
                    time.sleep(0.005)
            student.train()
            outside_s = time.perf_counter() - began
