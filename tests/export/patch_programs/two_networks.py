"""A generator and a discriminator: two optimizers, three backward calls an iteration."""
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

dataset = TensorDataset(torch.randn(64, 3, 16, 16))
dataloader = torch.utils.data.DataLoader(dataset, batch_size=16,
                                         shuffle=True, num_workers=int("0"))
netG = nn.Sequential(nn.ConvTranspose2d(8, 3, 16))
netD = nn.Sequential(nn.Conv2d(3, 1, 16), nn.Flatten(0))
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

for epoch in range(int(sys.argv[1])):
    for i, data in enumerate(dataloader, 0):
        ############################
        # (1) the discriminator
        ###########################
        netD.zero_grad()
        real = data[0]
        label = torch.full((real.size(0),), 1.0)
        output = netD(real)
        errD_real = criterion(output, label)
        errD_real.backward()

        # with what the generator makes
        noise = torch.randn(real.size(0), 8, 1, 1)
        fake = netG(noise)
        label.fill_(0.0)
        output = netD(fake.detach())
        errD_fake = criterion(output, label)
        errD_fake.backward()
        optimizerD.step()

        ############################
        # (2) the generator
        ###########################
        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
print("done", epoch + 1)
