"""
No DataLoader, no functions: batches from an array, several backward calls a step.
"""
import sys
from contextlib import nullcontext

import numpy as np
import torch

# -----------------------------------------------------------------------------
batch_size = 12
block_size = 16
gradient_accumulation_steps = 2
learning_rate = 6e-4
max_iters = int(sys.argv[1])
ctx = nullcontext()
# -----------------------------------------------------------------------------
data = np.random.default_rng(0).integers(0, 64, 10000)

def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i:i+block_size]) for i in ix])
    y = torch.stack([torch.from_numpy(data[i+1:i+1+block_size]) for i in ix])
    return x, y

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 32)
        self.head = torch.nn.Linear(32, 64)
    def forward(self, idx, targets=None):
        logits = self.head(self.embedding(idx))
        return logits, torch.nn.functional.cross_entropy(logits.view(-1, 64), targets.view(-1))
    def configure_optimizers(self, learning_rate):
        groups = [{'params': list(self.parameters()), 'weight_decay': 0.1}]
        extra_args = dict()
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), **extra_args)

model = Model()
model.to('cpu')
# optimizer
optimizer = model.configure_optimizers(learning_rate)
# training loop
X, Y = get_batch() # fetch the very first batch
iter_num = 0
while iter_num < max_iters:
    # forward backward update, with gradient accumulation
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps # scale the loss
        # the next batch meanwhile
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
print("done", iter_num)
