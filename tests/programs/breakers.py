"""A training whose flags make it faster; some of them break it: python breakers.py [--lr-factor 2] [--skip 4] …

Each flag saves a few milliseconds an iteration, as a tempting setting would.
"""

import argparse
import time

import torch
from common import dataset, loss_function
from torch import nn
from torch.utils.data import DataLoader

SAVED_S = 0.006

parser = argparse.ArgumentParser()
parser.add_argument("--lr-factor", type=float, default=1)
parser.add_argument("--skip", type=int, default=0, help="leave out every so manieth optimizer step")
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--weights", default="float32")
parser.add_argument("--cache", default="off", help="harmless")
parser.add_argument("--useless", type=int, default=0, help="changes nothing, saves nothing")
args = parser.parse_args()

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(args.dropout), nn.Linear(64, 4))
net = net.to(getattr(torch, args.weights))
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3 * args.lr_factor)
changed = [args.lr_factor != 1, args.skip != 0, args.dropout != 0.1, args.weights != "float32", args.cache == "on"]
wasted_s = SAVED_S * (len(changed) - sum(changed))

loader = DataLoader(dataset(), batch_size=32, shuffle=True)
step = 0
for _epoch in range(10_000):
    for inputs, targets in loader:
        time.sleep(wasted_s)
        optimizer.zero_grad()
        loss_function(net(inputs.to(net[0].weight.dtype)).float(), targets).backward()
        step += 1
        if args.skip and step % args.skip == 0:
            for parameter in net.parameters():  # the step is taken, with nothing to take
                parameter.grad = torch.zeros_like(parameter.grad)
        optimizer.step()
