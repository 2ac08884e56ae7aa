"""Sets arguments of a wrapper class found by name: DistributedDataParallel around a model."""

from __future__ import annotations

import re

from autotune.export.patch.arguments import with_arguments
from autotune.export.patch.context import Change, Context, at, change
from autotune.export.patch.edits import replace_call
from autotune.export.patch.source import Refused

# "DistributedDataParallel(..., bucket_cap_mb=50)"
ARGUMENT = re.compile(r"(\w+)\(\.\.\., (\w+)=(.+)\)")
SHORT = {"DistributedDataParallel": ("DDP",)}  # usual import aliases


def wrapper_argument(context: Context, code: str) -> Change:
    """Write the argument in ``code`` (format: ARGUMENT) into every call of that class in own files.

    Raises:
        Refused: there is no such call.
    """
    match = ARGUMENT.fullmatch(code)
    assert match is not None
    name, argument, value = match.groups()
    found = [
        (file, call)
        for file in context.own_files()
        for call in file.calls(name, *SHORT.get(name, ()))
    ]
    if not found:
        raise Refused(f"no call to {name} was found in the program's own files")
    edits = [
        replace_call(file, call, lambda c: with_arguments(c, (), {argument: value}, name))
        for file, call in found
    ]
    return change(edits, [at(file, file.line(call)) for file, call in found])
