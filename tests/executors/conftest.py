"""A Ray cluster of several nodes on this machine, shared by the tests of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from simulated_nodes import Nodes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """The cluster, with its own token file."""
    home = tmp_path_factory.mktemp("ray")
    token = home / "token"
    token.write_text("a-token-for-tests-only-0123456789abcdef")
    before = dict(os.environ)
    os.environ |= {"RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    _read_token_again()
    cluster = Nodes()
    try:
        yield cluster
    finally:
        cluster.cluster.shutdown()
        os.environ.clear()
        os.environ |= before
        _read_token_again()


def _read_token_again() -> None:
    """Ray reads its token once a process; an earlier file of tests may have used another."""
    from ray._raylet import AuthenticationTokenLoader

    AuthenticationTokenLoader.instance().reset_cache()
