"""RecBole: recommendation, its own DataLoader class that draws negative samples, evaluation after every epoch."""

import os
import sys

from recbole.quick_start import run_recbole

epochs, out = int(sys.argv[1]), sys.argv[2]
config = {
    "data_path": os.getcwd(),
    "epochs": epochs,
    "train_batch_size": 64,
    "stopping_step": epochs,
    "seed": 1,
    "loss_decimal_place": 8,
    "show_progress": False,
}
os.chdir(out)  # where it writes its logs
# saved=True reads its best weights again before the test, which torch.load refuses since torch 2.6
run_recbole(model="NeuMF", dataset="ratings", config_dict=config, saved=False)
