"""The search model: every block of a live session informs every knob.

    knobs.py       what is searched, what is proposed, what is answered: frozen records
    columns.py     configurations as rows of a design matrix; which knob means something when
    regression.py  Bayesian linear regression of log cost; bursts clipped, block noise by likelihood
    draws.py       the fastest configuration under each of many draws of the coefficients
    evidence.py    the blocks so far, and what they make of the knobs: posterior, noise, leader
    failures.py    what failed, by name; which combinations are not proposed
    looks.py       values never tried: in which order, and which need no look
    series.py      blocks that run one after another
    judgement.py   what a change is worth under spike-and-slab
    answers.py     which knobs of the leader are kept, and what a search may still gain
    compiling.py   when a compiled graph is worth its start-up
    search.py      ModelSearch: asked for the next series, told every block      <- start here

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
from autotune.search.model.search import ModelSearch

__all__ = ["FIRST_LOOK", "RECALLED", "Answer", "KnobVerdict", "ModelSearch", "Series", "SearchKnob"]
