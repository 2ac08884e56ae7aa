"""Tokens that are computed and mean nothing."""

from __future__ import annotations

from autotune.explain.records import Finding
from autotune.findings.base import Case, NotJudgeable, Rule
from autotune.findings.measures import place_of

# Sorted by length, batches of ordinary text keep some padding: 5 to 15 %.
SHARE = 0.25


class Padding(Rule):
    name = "padding"
    title = "Much of each batch is padding"
    card = (
        f"At least {SHARE:.0%} of the tokens in the watched batches are padding, by the zeros of an"
        " attention_mask that the DataLoader gives with them. A model that does not leave them out"
        " computes them like any other token. Models that do (unpadding, variable-length"
        " attention) are not told apart, so no cost is given. The place is where the DataLoader is"
        " built."
    )

    def judge(self, case: Case) -> list[Finding]:
        padded, tokens = case.evidence.padding
        if not tokens:
            raise NotJudgeable("batches come without an attention_mask, by which padding is told")
        if padded < SHARE * tokens:
            return []
        evidence = (
            f"{padded:,} of {tokens:,} tokens in the watched batches ({padded / tokens:.0%}) are"
            " padding by their attention_mask. Unless the model leaves them out, that share of"
            " forward and backward computes nothing that counts."
        )
        advice = (
            "Pack several sequences into each row, with attention that knows where they end"
            " (transformers.DataCollatorWithFlattening and its like); or, more simply, pad each"
            " batch to its own longest sequence and draw sequences of like length together."
        )
        return [
            self.finding(
                case, evidence, advice, places=[place_of(case.evidence.loader.get("place"))]
            )
        ]
