"""How far apart two gradients are, estimated from their sketches.

A count sketch is linear, S(a - b) = S(a) - S(b), and its norm estimates the vector's: with 1024
buckets the relative error of a ratio of norms is about sqrt(2 / 1024), 4%. Source: M. Charikar, K.
Chen, M. Farach-Colton, "Finding frequent items in data streams" (2002); K. Weinberger et al.,
"Feature hashing for large scale multitask learning" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def relative_error(reference: Sequence[float], other: Sequence[float]) -> float | None:
    """``|other - reference| / |reference|``, estimated from sketches; None if one is missing or not
    finite, if their sizes differ, or if the reference is zero."""
    if (
        not reference
        or len(reference) != len(other)
        or not all(map(math.isfinite, (*reference, *other)))
    ):
        return None
    size = math.hypot(*reference)
    return math.dist(reference, other) / size if size > 0 else None
