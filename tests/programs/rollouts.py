"""A policy that learns by playing: a rollout without gradients, then a burst of sixteen steps over minibatches of it."""

import time

import torch
from common import note
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
state = torch.randn(64, 8)
for _ in range(10_000):
    began = time.perf_counter()
    seen, done, paid = [], [], []
    with torch.no_grad():
        for _ in range(40):
            action = torch.distributions.Categorical(logits=policy(state)).sample()
            seen.append(state)
            done.append(action)
            paid.append((action == state[:, :4].argmax(1)).float())
            state = torch.randn(64, 8)
            time.sleep(0.001)
    seen, done, paid = torch.cat(seen), torch.cat(done), torch.cat(paid)
    outside_s = time.perf_counter() - began
    for part in torch.randperm(len(seen))[:2048].split(128):
        chances = torch.distributions.Categorical(logits=policy(seen[part])).log_prob(done[part])
        loss = -(chances * (paid[part] - paid.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note(loss, 128, outside_s)
        outside_s = 0.0
