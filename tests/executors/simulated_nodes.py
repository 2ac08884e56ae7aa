"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

# a lost node is noticed after seconds instead of half a minute; a slow node is not mistaken for one
PROMPT = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 4,
}
SMALL = {"object_store_memory": 80 << 20, "include_dashboard": False}


class Nodes:
    """A cluster whose head runs no trials; nodes with one slot each are added and removed.

    Args:
        port: of the head; 0: any.
        client_port: of the head's server for clients; 0: any.
    """

    def __init__(self, port: int = 0, client_port: int = 0) -> None:
        from ray.cluster_utils import Cluster

        head = {**SMALL, "num_cpus": 0, "_system_config": PROMPT, "gcs_server_port": port}
        head["ray_client_server_port"] = self.client_port = client_port or free_port()
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self.cluster.address)
        self.nodes: list[Any] = []

    def add(self, count: int = 1, **resources: Any) -> None:
        for _ in range(count):
            self.nodes.append(
                self.cluster.add_node(wait=True, **{**SMALL, "num_cpus": 1, **resources})
            )

    def remove(self) -> None:
        """Switch a node off."""
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)

    def only(self, count: int) -> None:
        while len(self.nodes) > count:
            self.remove()
        self.add(count - len(self.nodes))

    def behead(self) -> None:
        """Switch the head's machine off."""
        for started in self.cluster.head_node.all_processes.values():
            for one in started:
                os.kill(one.process.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
