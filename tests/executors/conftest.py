"""A Ray cluster of several nodes on this machine, shared by the tests of a file."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROMPT = {  # a node that is gone is missed after seconds, not after half a minute; one that is merely slow is not
    "health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 4,
}  # fmt: skip
SMALL = {"object_store_memory": 80 << 20, "include_dashboard": False}


class Nodes:
    """A cluster whose head runs no trials; nodes with one slot each are added and removed."""

    def __init__(self, temporary: Path) -> None:
        from ray.cluster_utils import Cluster

        head = {**SMALL, "num_cpus": 0, "_system_config": PROMPT}
        self.client_port = 0
        if importlib.util.find_spec("grpc"):  # of ray[client]
            with socket.create_server(("127.0.0.1", 0)) as free:
                head["ray_client_server_port"] = self.client_port = free.getsockname()[1]
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, count: int = 1, **resources: Any) -> None:
        for _ in range(count):
            self.nodes.append(self.cluster.add_node(wait=True, **{**SMALL, "num_cpus": 1, **resources}))

    def remove(self) -> None:
        """The machine is switched off."""
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)

    def only(self, count: int) -> None:
        while len(self.nodes) > count:
            self.remove()
        self.add(count - len(self.nodes))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Its token lies where no other cluster's does."""
    home = tmp_path_factory.mktemp("ray")
    token = home / "token"
    token.write_text("a-token-for-tests-only-0123456789abcdef")
    before = dict(os.environ)
    os.environ |= {"RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    cluster = Nodes(home)
    try:
        yield cluster
    finally:
        cluster.cluster.shutdown()
        os.environ.clear()
        os.environ |= before
