"""skorch: a scikit-learn estimator that trains, validates after every epoch and passes a closure to its optimizer."""

import sys

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

epochs, out = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(1)
np.random.seed(1)
inputs = np.random.randn(500, 32).astype(np.float32)
targets = inputs[:, :4].argmax(1).astype(np.int64)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 4), nn.Softmax(-1))

    def forward(self, x):
        return self.net(x)


net = NeuralNetClassifier(
    Classifier, max_epochs=epochs, batch_size=32, optimizer=torch.optim.AdamW, lr=3e-3, iterator_train__shuffle=True, verbose=0
)
net.fit(inputs, targets)
net.history.to_file(f"{out}/history.json")
