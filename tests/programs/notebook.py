#!/usr/bin/env python
# ruff: noqa: B007, B018

# # A notebook, exported to a script

# In[1]:


import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

try:
    get_ipython().run_line_magic("matplotlib", "inline")
except NameError:
    pass


# In[2]:


torch.manual_seed(0)
data = dataset()
loader = DataLoader(data, batch_size=32, shuffle=True)
inputs, labels = next(iter(loader))
inputs.shape, labels[:5]


# In[3]:


net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
net(inputs).shape


# In[4]:


for epoch in range(50):
    for inputs, labels in loader:
        loss = loss_function(net(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note(loss, len(inputs))
