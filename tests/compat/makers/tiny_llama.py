"""A folder with a tiny Llama and its tokenizer, and random text as jsonl: input of `trl sft`."""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

set_seed(1)
words = [f"w{n}" for n in range(120)]
tokenizer = Tokenizer(
    models.WordLevel(
        {w: n for n, w in enumerate(["<unk>", "<s>", "</s>", "<pad>", *words])}, unk_token="<unk>"
    )
)
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    unk_token="<unk>",
    bos_token="<s>",
    eos_token="</s>",
    pad_token="<pad>",
).save_pretrained("model")
config = LlamaConfig(
    vocab_size=124,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=3,
)
LlamaForCausalLM(config).save_pretrained("model")
Path("data").mkdir(exist_ok=True)
pick = random.Random(1)
with open("data/train.jsonl", "w") as file:
    for _ in range(400):
        start = pick.randrange(120)
        file.write(
            json.dumps(
                {
                    "text": " ".join(
                        words[(start + 7 * n) % 120] for n in range(pick.randrange(8, 24))
                    )
                }
            )
            + "\n"
        )
