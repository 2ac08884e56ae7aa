"""sentence-transformers: its own trainer on top of transformers', in-batch negatives, which compare all samples of a batch."""

import sys

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import set_seed

steps, out = int(sys.argv[1]), sys.argv[2]
set_seed(1)
words = Transformer("bert")
model = SentenceTransformer(modules=[words, Pooling(words.get_embedding_dimension())], device="cpu")
nouns = [f"word{n}" for n in range(60)]
pairs = [(f"{nouns[n % 60]} {nouns[n * 7 % 60]}", f"{nouns[(n + 1) % 60]} {nouns[n * 7 % 60]}") for n in range(480)]
data = Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]})
arguments = SentenceTransformerTrainingArguments(
    output_dir=out, max_steps=steps, per_device_train_batch_size=8, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
    seed=1, disable_tqdm=True, learning_rate=1e-3,
)
trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model))
trainer.train()
trainer.save_state()
