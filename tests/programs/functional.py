"""Training with torch.func: parameters in a dictionary, gradients from a transform, updates that make new tensors."""

import torch
from common import dataset, loss_function, model, note
from torch.func import functional_call, grad_and_value
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
parameters = {name: value.detach() for name, value in net.named_parameters()}


def loss_of(parameters, inputs, labels):
    return loss_function(functional_call(net, parameters, (inputs,)), labels)


gradients_of = grad_and_value(loss_of)
for _ in range(200):
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        gradients, loss = gradients_of(parameters, inputs, labels)
        parameters = {name: value - 0.1 * gradients[name] for name, value in parameters.items()}
        note(loss, len(inputs))
