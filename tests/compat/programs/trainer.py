"""transformers Trainer: a tiny GPT-2 from scratch, gradient accumulation, an evaluation now and then."""

import sys
import time

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from words import Words

steps, out = int(sys.argv[1]), sys.argv[2]
set_seed(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=24, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))


def metrics(predicted):
    time.sleep(0.5)  # an evaluation that takes a while
    return {"right": float((predicted.predictions.argmax(-1)[:, :-1] == predicted.label_ids[:, 1:]).mean())}


arguments = TrainingArguments(
    output_dir=out, max_steps=steps, per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=1,
    eval_strategy="steps", eval_steps=20, save_strategy="no", report_to=[], use_cpu=True, seed=1, disable_tqdm=True,
    learning_rate=1e-3,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Words(), eval_dataset=Words(32), compute_metrics=metrics)
trainer.train()
trainer.save_state()
