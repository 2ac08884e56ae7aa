"""result.json: a Result on disk. Its fields are documented in docs/result.md and are stable.

JSON has no NaN or infinity, so both are written as ``null``: a ``null`` point in a loss curve was
not finite.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.explain.records import Explanation
from autotune.results import RESULT_SCHEMA_VERSION, Result
from autotune_spaces.codec import decode, encode, fits
from autotune_trials.paths import publish

FILE_NAME = "result.json"
ANEW = (
    "move it away and rerun `autotune run` on the same job: it rewrites the file from its journal"
)


def to_json(result: Result) -> dict[str, Any]:
    """The content of result.json, as JSON data without NaN or infinity."""
    data = finite(encode(result))
    return {"schema_version": data["schema_version"], **data}


def finite(data: Any) -> Any:
    """JSON data with every NaN and infinity as None."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [finite(value) for value in data]
    return data


def json_text(data: Any) -> str:
    """Records as ASCII JSON, so unpaired surrogates (undecodable file names) are escaped.

    ``environment`` and operator rows may hold any type; what JSON cannot represent is written as
    ``str(value)``.
    """
    return json.dumps(finite(encode(data)), indent=2, default=str, allow_nan=False) + "\n"


def write_result(result: Result, path: Path) -> None:
    """Write ``result`` to ``path`` (write, flush, rename: readers never see a partial file).

    Raises:
        OSError: the directory cannot be written.
    """
    publish(path, json_text(to_json(result)))


def write_findings(explanation: Explanation, path: Path) -> None:
    """Write findings.json, for the tracking server and scripts; no file if no rule was evaluated.

    Holds the findings, the rules that could not be judged and the number that were, as in
    ``explanation`` of result.json.

    Raises:
        OSError: the directory cannot be written.
    """
    if explanation.rules or explanation.findings:
        told = ("rules", "findings", "not_judged")
        publish(path, json_text({name: getattr(explanation, name) for name in told}))


def load_result(path: Path) -> Result:
    """Read a result.json.

    Raises:
        InputError: the file is missing, unreadable, not JSON, not a result, or has a newer schema.
    """
    wrong = partial(InputError, where=str(path), expected="the result.json of a finished run")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise wrong("there is no such file") from None
    except OSError as error:
        raise wrong(f"cannot be read: {error.strerror or error}", expected="") from None
    except UnicodeDecodeError:
        raise wrong("is not text") from None
    except (ValueError, RecursionError) as error:  # a 5000-digit number raises a plain ValueError
        remedy = ANEW if path.name == FILE_NAME else ""  # another file is the user's own
        raise wrong(f"is not JSON: {error}", remedy=remedy) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise wrong("is not a result: it has no schema_version")
    if version > RESULT_SCHEMA_VERSION:
        raise wrong(
            f"has schema_version {version}, this autotune reads up to {RESULT_SCHEMA_VERSION}",
            expected="",
            remedy="read it with the autotune that wrote it, or a newer one",
        )
    try:
        result = decode(Result, _of_version_2(data) if version < 2 else data)
        if not fits(Result, result, loose=True):
            raise TypeError("a field has the wrong type")
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise wrong(
            f"is not a complete result: {error}",
            expected="the fields in docs/result.md",
            remedy=ANEW,
        ) from None
    return result


def _of_version_2(data: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a version 1 result, which called the pairs of a confirmation blocks."""
    data = {**data, "schema_version": RESULT_SCHEMA_VERSION}
    if isinstance(data.get("confirmation"), dict):
        new = {"blocks": "pairs", "required_blocks": "required_pairs"}
        data["confirmation"] = {new.get(k, k): v for k, v in data["confirmation"].items()}
    return data
