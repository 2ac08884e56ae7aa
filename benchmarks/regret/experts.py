"""What an engineer who has read the job would set, written down before anything was measured; the
tool is also compared with the best of these.
"""

from __future__ import annotations

from typing import Any

from processes import Processes

_BF16 = {"amp_dtype": "bfloat16"}
_CNN = {**_BF16, "channels_last": True}
_KEPT = {"malloc": "retain"}
_FUSED = {"optimizer_impl": "fused"}
_COMPILED = {"compile_mode": "default"}
_ONE_THREAD = {"intra_op_threads": 1}
_ALIVE = {"persistent_workers": True}

GUESSES: dict[str, list[dict[str, Any]]] = {
    "conv": [_CNN, {**_CNN, **_KEPT, **_FUSED}, {**_CNN, **_KEPT, **_COMPILED}],
    "conv_no_eval": [
        {**_CNN, **_KEPT},
        {**_CNN, **_KEPT, **_FUSED},
        {**_CNN, **_KEPT, "num_workers": 1, **_ALIVE},
    ],
    "digits": [_CNN, {**_CNN, **_COMPILED}, {**_CNN, **_KEPT, **_FUSED}],
    "embedding_heavy": [_FUSED, {**_FUSED, **_KEPT}, {**_FUSED, "num_workers": 1, **_ALIVE}],
    "epoch_end_bound": [_ALIVE, {**_ALIVE, **_CNN}, {**_CNN, **_KEPT, "num_workers": 0}],
    "expert": [_COMPILED],
    "launch_bound": [_COMPILED, {**_COMPILED, **_FUSED}, {**_COMPILED, **_FUSED, **_ONE_THREAD}],
    "loader_computes": [
        {"num_workers": 2, **_ALIVE},
        {"num_workers": 2, **_ALIVE, **_ONE_THREAD},
        {"num_workers": 1, **_ALIVE},
    ],
    "loader_waits": [{"num_workers": n, **_ALIVE} for n in (16, 32, 64)],
    "memory_churning": [_KEPT, {**_KEPT, **_COMPILED}, {**_KEPT, **_BF16}],
    "nothing": [_KEPT],
    "recurrent": [_BF16, {**_KEPT, **_FUSED}, _COMPILED],
    "tiny_batches": [
        {**_ONE_THREAD, **_FUSED},
        {**_ONE_THREAD, **_FUSED, **_COMPILED},
        {**_ONE_THREAD, **_FUSED, "num_workers": 1, **_ALIVE},
    ],
    "transformer": [_BF16, {**_BF16, **_KEPT, **_FUSED}, {**_BF16, **_COMPILED}],
}


def expert(processes: Processes) -> list[dict[str, Any]]:
    """The guesses as answers of method "expert", which take no time."""
    return [
        processes.records.append(
            "answer",
            f"expert-{number}",
            method="expert",
            minutes=0,
            config=processes.space.normalized(guess),
            wall_s=0.0,
            trials=0,
        )
        for number, guess in enumerate(GUESSES[processes.job])
    ]
