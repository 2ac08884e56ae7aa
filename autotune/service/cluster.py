"""The cluster that runs are sent to: its address, its token, and its errors in words.

    address   --address, else RAY_API_SERVER_ADDRESS, else RAY_ADDRESS if it is http(s), else http://127.0.0.1:8265
    token     --token-file, else RAY_AUTH_TOKEN, else RAY_AUTH_TOKEN_PATH, else ~/.ray/auth_token

The second line is Ray's own order (https://docs.ray.io/en/latest/ray-security/token-auth.html). The
token is sent in a header of each request and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import InputError, request_failure
from autotune.secrets import mask_url

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
EXPECTED = (
    "the address of a Ray cluster's dashboard: http://HOST:8265, or https:// if it is behind a"
    " proxy"
)
MOST_NODES = 10_000  # the most that Ray lists
CONNECT_S, ANSWER_S = 5, 20  # until a cluster counts as unreachable
UPLOAD_S = 3600  # for the job's folder to be sent


@dataclass(frozen=True)
class Cluster:
    address: str  # http(s)://host[:port]
    address_from: str  # the flag or variable that named it
    token: str = field(default="", repr=False)
    token_from: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def client(self) -> Any:
        """Ray's client for this cluster, after checking that the cluster answers.

        Raises:
            InputError: no answer, not a Ray cluster, or it rejects the token.
        """
        self._check()
        from ray.job_submission import JobSubmissionClient

        with _no_address_variables(), self.request_errors_as_input_errors():
            client = JobSubmissionClient(self.address, headers=self.headers)
        ask = client._do_request

        def bounded(*args: Any, data: bytes | None = None, **more: Any) -> Any:
            """Ray's own requests wait for ever. The first figure is also for all of ``data``."""
            timeout = (CONNECT_S, ANSWER_S) if data is None else (UPLOAD_S, UPLOAD_S)
            return ask(*args, data=data, timeout=timeout, **more)

        client._do_request = bounded
        return client

    def nodes(self) -> list[Mapping[str, Any]]:
        """Resources of each living node, from Ray's state API: ``{"CPU": 8.0, "GPU": 1.0, …}``."""
        from ray.util.state.api import StateApiClient
        from ray.util.state.common import ListApiOptions, StateResource
        from ray.util.state.exception import RayStateApiException

        headers = {"Content-Type": "application/json", **self.headers}
        try:
            with _no_address_variables(), self.request_errors_as_input_errors():
                client = StateApiClient(self.address, headers=headers)
                found = client.list(
                    StateResource.NODES,
                    # Ray knows the dead ones for long, and lists 100 unless told
                    ListApiOptions(
                        detail=True,
                        timeout=ANSWER_S,
                        filters=[("state", "=", "ALIVE")],
                        limit=MOST_NODES,
                    ),
                    raise_on_missing_output=False,
                )
        except RayStateApiException as error:
            raise InputError(
                f"the cluster at {self.address} does not list its nodes: {request_failure(error)[:200]}",
                where=self.address_from,
                remedy="reserve resources for the run with --cpus and --gpus",
            ) from error
        return [node["resources_total"] for node in found]

    def _check(self) -> None:
        """Send one small request with a time limit, which Ray's own client does not have."""
        import requests

        try:
            answer = requests.get(
                f"{self.address}/api/version", headers=self.headers, timeout=(CONNECT_S, ANSWER_S)
            )
        except requests.RequestException as error:
            raise self._unreachable(error) from None
        if answer.status_code in (401, 403):
            raise self._refused(answer.status_code)
        try:
            known = answer.status_code == 200 and "ray_version" in answer.json()
        except ValueError:
            known = False
        if not known:
            found = (
                f"the server at {self.address} is not a Ray cluster's dashboard (HTTP"
                f" {answer.status_code})"
            )
            raise InputError(found, where=self.address_from, expected=EXPECTED)

    @contextlib.contextmanager
    def request_errors_as_input_errors(self) -> Iterator[None]:
        """Raise the cluster's errors as :class:`InputError`.

        Errors in which the cluster reports its own defects pass through unchanged.
        """
        import aiohttp
        import requests
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise self._refused(401 if "required" in str(error) else 403) from None
        except (ConnectionError, requests.RequestException, aiohttp.ClientError) as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> InputError:
        return InputError(
            f"no answer from {self.address}: {request_failure(error)[:200]}",
            where=self.address_from,
            expected=EXPECTED,
            remedy=(
                "start the service (docker/up.sh, or docker compose up), or pass its address with"
                " --address"
            ),
        )

    def _refused(self, status: int) -> InputError:
        places = "--token-file FILE, RAY_AUTH_TOKEN_PATH=FILE, or ~/.ray/auth_token"
        if not self.token:
            found = f"the cluster at {self.address} requires a token, and none was given"
        else:
            found = (
                f"the cluster at {self.address} rejects the token from {self.token_from} (HTTP"
                f" {status})"
            )
        return InputError(
            found,
            where=self.token_from or "--token-file",
            expected="the token the cluster was started with",
            remedy=places,
        )


def find_cluster(address: str | None, token_file: Path | None) -> Cluster:
    """The cluster that flags and environment name. It is not contacted yet.

    Raises:
        InputError: they do not name an address, or the token's file cannot be read.
    """
    _require_client()
    token, token_from = _token(token_file)
    return Cluster(*_address(address), token, token_from)


def _require_client() -> None:
    """The packages that Ray's job client needs; ``service`` brings them."""
    from importlib.util import find_spec

    missing = [name for name in ("requests", "aiohttp") if find_spec(name) is None]
    if missing:
        found = f"{', '.join(missing)} not installed, but needed to submit runs"
        remedy = "pip install '.[service]' in a clone of autotune's repository"
        raise InputError(found, where="autotune", remedy=remedy)


def _address(given: str | None) -> tuple[str, str]:
    if given is not None:
        return _http(given, "--address"), "--address"
    for name in ADDRESS_VARIABLES:
        # RAY_ADDRESS is often an address inside the cluster (auto, host:6379): that is no mistake,
        # but of no use here.
        if (named := os.environ.get(name, "")).startswith(("http://", "https://")):
            return _http(named, name), name
    return DEFAULT_ADDRESS, "--address"


def _http(text: str, where: str) -> str:
    """Check ``text``; a user name or password in it would be shown with the address."""
    try:
        parts = urllib.parse.urlsplit(text)
        valid = parts.hostname and "@" not in parts.netloc and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that does not close
        valid = False
    if not valid or parts.scheme not in ("http", "https"):
        raise InputError(
            f"'{mask_url(text)}' is not the address of a cluster",
            where=where,
            expected=EXPECTED,
            remedy="a token is passed with --token-file" if "@" in text else "",
        )
    # as a browser shows it: http://HOST:8265/#/overview
    return parts._replace(query="", fragment="").geturl().rstrip("/")


def _token(file: Path | None) -> tuple[str, str]:
    """(token, where it comes from); both empty if there is none."""
    if file is not None:
        return _read_token(file, "--token-file"), "--token-file"
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return _printable(token, "RAY_AUTH_TOKEN"), "RAY_AUTH_TOKEN"
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH", ""):
        return _read_token(Path(path), "RAY_AUTH_TOKEN_PATH"), "RAY_AUTH_TOKEN_PATH"
    default = Path("~/.ray/auth_token").expanduser()
    return (_read_token(default, str(default)), str(default)) if default.is_file() else ("", "")


def _read_token(file: Path, where: str) -> str:
    expected = "a file with the cluster's token and nothing else"
    try:
        token = file.expanduser().read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise InputError(f"{file} is not text", where=where, expected=expected) from None
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror or error}", where=where, expected=expected
        ) from None
    if not token:
        raise InputError(f"{file} is empty", where=where, expected=expected)
    return _printable(token, where)


def _printable(token: str, where: str) -> str:
    """Require printable ASCII, the only text a header can hold.

    Otherwise the library that sends the header would quote the token in its error.
    """
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise InputError(
            "the token contains spaces, line breaks or other characters no token has",
            where=where,
            expected="one word of printable ASCII",
        )
    return token


@contextlib.contextmanager
def _no_address_variables() -> Iterator[None]:
    """Ray would prefer them to the address it is given."""
    kept = {name: os.environ.pop(name) for name in ADDRESS_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
