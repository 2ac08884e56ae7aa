"""The search model: every block of a live session informs every knob.

    knobs.py       frozen records: what is searched, proposed and answered
    columns.py     configurations as rows of a design matrix; when a conditional knob has an effect
    regression.py  Bayesian linear regression of log cost; bursts clipped, block noise by likelihood
    draws.py       the fastest configuration under each of many draws of the coefficients
    evidence.py    the blocks so far, and what they say about the knobs: posterior, noise, leader
    failures.py    which values or combinations failed, and must not be proposed
    looks.py       untried values: in which order to try them, and which to skip
    series.py      blocks that run one after another
    judgement.py   the value of a change under spike-and-slab
    answers.py     which knobs of the leader are kept, and what the search may still gain
    compiling.py   when a compiled graph is worth its start-up
    search.py      ModelSearch: ask for the next series, tell every block      <- start here

Functions of numbers: no files, no clock, no torch.
"""

from autotune.search.model.knobs import (
    FIRST_LOOK,
    RECALLED,
    Answer,
    KnobVerdict,
    SearchKnob,
    Series,
)
from autotune.search.model.search import OUT_OF_TIME, ModelSearch

__all__ = [
    "FIRST_LOOK",
    "OUT_OF_TIME",
    "RECALLED",
    "Answer",
    "KnobVerdict",
    "ModelSearch",
    "SearchKnob",
    "Series",
]
