"""A folder with a tiny BERT and its tokenizer."""

from pathlib import Path

from transformers import BertConfig, BertModel, BertTokenizerFast, set_seed

set_seed(1)
Path("bert").mkdir(exist_ok=True)
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(60))]
Path("bert/vocab.txt").write_text("\n".join(vocabulary) + "\n")
BertTokenizerFast("bert/vocab.txt").save_pretrained("bert")
BertModel(
    BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=32,
    )
).save_pretrained("bert")
