"""Padding tokens that are computed for nothing."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import loader_place

# Batches of ordinary text keep 5 to 15% padding even if sorted by length.
SHARE = 0.25


class Padding(Rule):
    name = "padding"
    title = "Much of each batch is padding"
    card = (
        f"At least {SHARE:.0%} of the tokens in the watched batches are padding, judging by the"
        " zeros in the attention_mask that the DataLoader returns with them. A model that does not"
        " skip them computes them like any other token. Models that do (unpadding, variable-length"
        " attention) cannot be recognized, so no cost is given. The finding points to where the"
        " DataLoader is built."
    )

    def judge(self, case: Case) -> list[Finding]:
        padded, tokens = case.evidence.padding
        if not tokens:
            raise NotJudgeable("batches come without an attention_mask, which would show padding")
        if padded < SHARE * tokens:
            return []
        evidence = (
            f"{padded:,} of {tokens:,} tokens in the watched batches ({padded / tokens:.0%})"
            " are padding, judging by their attention_mask. Unless the model skips them, that"
            " share of forward and backward is wasted."
        )
        advice = (
            "Pack several sequences into each row, with attention that knows where they end"
            " (such as transformers.DataCollatorWithFlattening); or, more simply, pad each batch"
            " to its own longest sequence and batch sequences of similar length together."
        )
        return [self.finding(case, evidence, advice, places=[loader_place(case)])]
