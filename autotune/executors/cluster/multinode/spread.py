"""One job over several nodes: a session whose command runs on each of them.

    slot (first node)    SpreadExecutor ── SpreadSession ── torchrun, node 0        the session speaks with all ranks
      │ begin, take, give, end                   ▲ relay.py
    outpost (each other) Outpost ───────── RemoteSession ── torchrun, node 1

Every node starts the same command, with the same settings, in its own copy of the directory.
torchrun learns from variables how many nodes there are, which of them this is, and where the first
one waits.
"""

from __future__ import annotations

import io
import socket
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.executors.cluster.answers import CHUNK_BYTES, first_line
from autotune.executors.cluster.multinode.relay import Relay
from autotune.executors.local import LocalExecutor, SessionRequest
from autotune_trials.diagnosis.classify import Diagnosis
from autotune_trials.protocol.failures import SessionFailed
from autotune_trials.session.remote_session import torchrun_variables
from autotune_trials.session.session import Session

# for a node to answer before it counts as lost: Ray itself needs half a minute to notice
CHECK_S = 60.0
END_S = 60.0  # for an outpost to end its session


class SpreadSession(Session):
    """A session on this node and on those of ``outposts``, which :class:`SpreadExecutor` sets."""

    outposts: Outposts

    def over(self, outposts: Outposts) -> None:
        """Run on those nodes, too; called before the session is started."""
        self.outposts = outposts
        self.postmortem.lost_machine = outposts.check
        self.postmortem.ended_elsewhere = outposts.ended
        self.waiting.check_elsewhere = self._check_outposts

    def start(self) -> None:
        super().start()
        self.outposts.begin(self.inbox.address)

    def close(self) -> None:
        if not self.closed:
            self.outposts.end()
            super().close()
            self.outposts.bring(self.paths.root)

    def _check_outposts(self, until: str) -> None:
        """Raises:
        SessionFailed: the ranks of another node can send nothing more.
        """
        if self.outposts.ended() is None and not self.outposts.lost():
            return
        self.waiting.wait_for_last_words()
        if self.command.exit_status is None and not self.inbox.messages:
            raise self.postmortem.found(
                self.outposts.ended()
                or Diagnosis("ended", f"one node did not report before {until}")
            )


class Outposts:
    """The other nodes of one session.

    Args:
        actors: their handles, in the order of the nodes.
        begin: starts one of them as the node of that number; returns a reference to its answer.
    """

    def __init__(self, actors: Sequence[Any], begin: Callable[[Any, int], Any]) -> None:
        self._actors, self._begin = actors, begin
        self._relays: list[Relay] = []
        self._ending: list[Any] = []

    def begin(self, address: str) -> None:
        """Start all of them, and relay what they say to the session's socket.

        Raises:
            SessionFailed
        """
        for answer in _get(
            [self._begin(actor, node) for node, actor in enumerate(self._actors, 1)]
        ):
            answer.get()
        self._relays = [_relay(actor, address) for actor in self._actors]

    def ended(self) -> Diagnosis | None:
        return next((relay.ended for relay in self._relays if relay.ended is not None), None)

    def lost(self) -> str:
        return next((relay.lost for relay in self._relays if relay.lost), "")

    def check(self) -> str:
        """Why one of them is lost; "": all answer."""
        try:
            _get([actor.answers.remote() for actor in self._actors])
        except SessionFailed as failure:
            return failure.detail
        return ""

    def end(self) -> None:
        """Have all of them end their sessions while the one here ends."""
        self._ending = [actor.end.remote() for actor in self._actors]

    def bring(self, home: Path) -> None:
        """Put what they leave in ``node1``, ``node2`` … below the session's directory."""
        import ray
        from ray.exceptions import RayError

        for node, (actor, size) in enumerate(zip(self._actors, self._ending, strict=True), 1):
            try:
                parts = range(0, ray.get(size, timeout=END_S), CHUNK_BYTES)
                packed = b"".join(
                    ray.get([actor.chunk.remote(offset) for offset in parts], timeout=END_S)
                )
                with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
                    archive.extractall(home / f"node{node}", filter="data")
            except (RayError, OSError, tarfile.TarError):  # gone, and its logs with it
                continue
        for relay in self._relays:
            relay.close()


class SpreadExecutor(LocalExecutor):
    """A local executor whose command also runs on the nodes of ``outposts``.

    ``address`` is this node's.
    """

    session_class = SpreadSession

    def __init__(self, *args: Any, outposts: Sequence[Any], address: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._outposts, self._address = outposts, address

    def new_session(self, request: SessionRequest) -> Session:
        nodes, port = 1 + len(self._outposts), free_port()
        self.variables = torchrun_variables(nodes, 0, self._address, port)
        session = super().new_session(request)
        assert isinstance(session, SpreadSession)

        def begin(actor: Any, node: int) -> Any:
            variables = torchrun_variables(nodes, node, self._address, port)
            return actor.begin.remote(replace(request, capture=None), variables)

        session.over(Outposts(self._outposts, begin))
        return session

    def close(self) -> None:
        import ray

        super().close()
        ray.wait(
            [actor.close.remote() for actor in self._outposts],
            num_returns=len(self._outposts),
            timeout=END_S,
        )


def free_port() -> int:
    """A free port for torchrun's store.

    It is still free when torchrun asks for it: the kernel hands out others in between.
    """
    with socket.create_server(("", 0)) as found:
        return int(found.getsockname()[1])


def own_address() -> str:
    """This node's address, as the others reach it."""
    import ray

    return str(ray.util.get_node_ip_address())


def _relay(actor: Any, address: str) -> Relay:
    import ray

    return Relay(lambda seconds: ray.get(actor.take.remote(seconds)), actor.give.remote, address)


def _get(references: Sequence[Any]) -> Sequence[Any]:
    """What the actors answer.

    Raises:
        SessionFailed: "lost"
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return list(ray.get(list(references), timeout=CHECK_S))
    except RayTaskError:  # our own bug there
        raise
    except RayError as error:
        raise SessionFailed("lost", f"a node of the job is lost ({first_line(error)})") from error
