"""A policy that learns by playing: hundreds of calls without gradients fill a buffer, then two epochs of minibatches through a DataLoader of it.

Every minibatch also asks the policy, without gradients, what it would do now.
"""

import time

import torch
from common import note
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
state = torch.randn(8, 8)
for _ in range(10_000):
    began = time.perf_counter()
    seen, done, paid = [], [], []
    with torch.no_grad():
        for _ in range(200):
            action = torch.distributions.Categorical(logits=policy(state)).sample()
            seen.append(state)
            done.append(action)
            paid.append((action == state[:, :4].argmax(1)).float())
            state = torch.randn(8, 8)
            time.sleep(0.001)
    loader = DataLoader(TensorDataset(torch.cat(seen), torch.cat(done), torch.cat(paid)), batch_size=200, shuffle=True)
    outside_s = time.perf_counter() - began
    for _ in range(2):
        for states, actions, gains in loader:
            with torch.no_grad():
                before = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
            chances = torch.distributions.Categorical(logits=policy(states)).log_prob(actions)
            loss = -((chances - before).exp() * (gains - gains.mean())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            note(loss, len(states), outside_s)
            outside_s = 0.0
