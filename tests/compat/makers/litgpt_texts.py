"""A tokenizer of 122 words and random text in files, cut into blocks by litgpt itself: input of
`litgpt pretrain`.
"""

import json
import random
from pathlib import Path

from litgpt.data import TextFiles
from litgpt.tokenizer import Tokenizer
from tokenizers import Tokenizer as Words
from tokenizers import models, pre_tokenizers

if __name__ == "__main__":
    words = [f"w{n}" for n in range(120)]
    tokenizer = Words(
        models.WordLevel({w: n for n, w in enumerate(["<unk>", "<s>", *words])}, "<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = Path("tokenizer")
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    texts = Path("texts")
    texts.mkdir(exist_ok=True)
    pick = random.Random(1)
    for file in range(2):
        text = [words[(7 * n + pick.randrange(3)) % 120] for n in range(40_000)]
        (texts / f"{file}.txt").write_text(" ".join(text))
    data = TextFiles(texts)
    data.connect(Tokenizer(folder), batch_size=2, max_seq_length=25)
    data.prepare_data()
