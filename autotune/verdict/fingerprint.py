"""Compare settings that must be equal unless a knob declares that it changes them.

Tenfold weight decay leaves the loss unchanged for a fifth of a training, then costs 8%: an early
trajectory cannot show it, but the optimizer's param groups do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

# relative; covers JSON and another order of summation: real changes of a setting are far larger
SAME_FLOAT = 1e-12
_MISSING = object()


def fingerprint_differences(
    baseline: Mapping[str, Any], candidate: Mapping[str, Any], declared: Collection[str] = ()
) -> list[str]:
    """Undeclared differences, one line each: ``optimizers.0.groups.1.weight_decay: 0.01 in the
    baseline, 0.1 in the candidate``.

    Args:
        baseline, candidate: nested mappings, sequences and plain values, as decoded from JSON (list
            and tuple are equivalent).
        declared: what the changed knobs may change, including everything below: a key at any depth
            (``batch_size``), or a path pattern in which ``*`` matches any part
            (``optimizers.*.lr``).
    """
    found: list[str] = []
    _walk(baseline, candidate, "", (), declared, found)
    return found


def _walk(
    a: Any, b: Any, path: str, keys: tuple[str, ...], declared: Collection[str], found: list[str]
) -> None:
    if any(d in keys or fnmatchcase(path, d) for d in declared):
        return
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in sorted({*a, *b}, key=str):
            below = f"{path}.{key}" if path else str(key)
            _walk(
                a.get(key, _MISSING),
                b.get(key, _MISSING),
                below,
                (*keys, str(key)),
                declared,
                found,
            )
    elif _is_list(a) and _is_list(b) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            _walk(x, y, f"{path}.{i}" if path else str(i), keys, declared, found)
    elif not _same(a, b):
        found.append(
            f"{path or 'fingerprint'}: {_shown(a)} in the baseline, {_shown(b)} in the candidate"
        )


def _is_list(x: Any) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, (str, bytes))


def _same(a: Any, b: Any) -> bool:
    if a is _MISSING or b is _MISSING or isinstance(a, bool) != isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return (
            a == b
            or math.isclose(a, b, rel_tol=SAME_FLOAT, abs_tol=0.0)
            or (math.isnan(a) and math.isnan(b))
        )
    if _is_list(a) and _is_list(b):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=False))
    return type(a) is type(b) and bool(a == b)


def _shown(x: Any) -> str:
    if x is _MISSING:
        return "missing"
    if _is_list(x):
        return f"{len(x)} entries"
    text = repr(x)
    return text if len(text) <= 60 else f"{text[:57]}…"
