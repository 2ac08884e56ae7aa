"""Data copied to memory by a shell script, and removed when it ends."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from autotune.export.launching import knobs_of
from autotune.export.shell_words import STAGED
from autotune.export.tuned import TunedConfig
from autotune_spaces import staging
from autotune_spaces.base import Start
from autotune_spaces.knobs.data_staging import DataStaging


def staged(tuned: TunedConfig, command: Sequence[str]) -> tuple[list[str], list[str]]:
    """(lines that copy the data, ``command`` with the copy's path in it); ([], command) if none are
    to be copied, or are not found here.

    The shell stays until the command has ended, so the command must not be started with ``exec``.
    """
    knob = knobs_of(tuned).get(DataStaging.name)
    if not isinstance(knob, DataStaging) or tuned.knobs[DataStaging.name].value != "shm":
        return [], list(command)
    start = Start(tuple(command), {}, str(tuned.workdir))
    found, _ = staging.named_by(start, knob.wanted)
    if not found:
        return [], list(command)
    copies = {data.path: f"${{{STAGED}}}/{index}" for index, data in enumerate(found)}
    lines = [
        f"{STAGED}=$(mktemp -d {staging.SHM}/autotune-data.XXXXXX)",
        (
            f"trap 'rm -rf -- \"${STAGED}\"' EXIT; trap 'exit 129' HUP; trap 'exit 130' INT; trap"
            " 'exit 143' TERM"
        ),
        *(
            f'cp -RpL -- {shlex.quote(data.path)} "${STAGED}/{index}"'
            for index, data in enumerate(found)
        ),
    ]
    return lines, list(staging.replaced(start, copies).argv)
