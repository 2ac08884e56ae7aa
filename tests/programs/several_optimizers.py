"""A small GAN: two networks, two optimizers, three backward calls an iteration."""

import torch
from common import dataset, note
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
critic = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
loss_function = nn.BCEWithLogitsLoss()
for _ in range(100):
    for real, _ in DataLoader(dataset(), batch_size=32, shuffle=True):
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        critic_optimizer.zero_grad()
        on_real = loss_function(critic(real), ones)
        on_real.backward()
        fake = generator(torch.randn(len(real), 8))
        on_fake = loss_function(critic(fake.detach()), zeros)
        on_fake.backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        fooled = loss_function(critic(fake), ones)
        fooled.backward()
        generator_optimizer.step()
        note(on_real.item() + on_fake.item() + fooled.item(), len(real))
