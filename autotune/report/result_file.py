"""result.json: a Result on disk. Its fields are documented in docs/result.md and stay as they are.

JSON knows no NaN and no infinity, so both are written as ``null``; a point of a loss curve that is ``null`` was not finite.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.results import RESULT_SCHEMA_VERSION, Result
from autotune_spaces.codec import decode, encode
from autotune_trials.paths import publish

FILE_NAME = "result.json"
# What a reader looks for first stands first in the file.
FIRST = ("schema_version", "name", "verdict", "reason", "speedup", "loss", "knobs", "baseline")


def to_json(result: Result) -> dict[str, Any]:
    """The content of result.json, as JSON data without NaN or infinity."""
    data = finite(encode(result))
    return {key: data.pop(key) for key in FIRST} | data


def finite(data: Any) -> Any:
    """JSON data with every NaN and infinity as None."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [finite(value) for value in data]
    return data


def write_result(result: Result, path: Path) -> None:
    """Write ``result`` to ``path`` (write, flush, rename: no reader sees half of it).

    ``environment`` and operator rows may hold anything; what JSON cannot say is written as its text.

    Raises:
        OSError: the directory cannot be written.
    """
    # ASCII escapes keep unpaired surrogates (undecodable file names) out of the UTF-8 file
    publish(path, json.dumps(to_json(result), indent=2, default=str, allow_nan=False) + "\n")


def load_result(path: Path) -> Result:
    """Read a result.json.

    Raises:
        InputError: the file is not there, cannot be read, is not JSON, not a result, or of a newer schema.
    """
    where = str(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("there is no such file", where=where, expected="the result.json of a finished run") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=where) from None
    except UnicodeDecodeError:
        raise InputError("is not text", where=where, expected="the result.json of a finished run") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", where=where, expected="the result.json of a finished run") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise InputError("is not a result: it has no schema_version", where=where, expected="the result.json of a finished run")
    if version > RESULT_SCHEMA_VERSION:
        raise InputError(
            f"has schema_version {version}, this autotune reads up to {RESULT_SCHEMA_VERSION}",
            where=where, remedy="read it with the autotune that wrote it, or a newer one",
        )
    try:
        return decode(Result, data)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise InputError(
            f"is not a whole result: {error}", where=where, expected="the fields of docs/result.md",
            remedy="rerun `autotune run` on the same job: it writes the file anew from its journal",
        ) from None
