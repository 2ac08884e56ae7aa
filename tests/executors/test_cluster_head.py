"""When a head counts as lost. Needs no cluster; in test_ray_faults.py a real head is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from autotune.errors import ClusterLost
from autotune.executors.cluster import head as module
from autotune.executors.cluster.head import Head

PATIENCE_S = 1.0


class Machine:
    """A head that answers while it is ``there``; otherwise it is silent, or it raises."""

    def __init__(self) -> None:
        self.there, self.raising = threading.Event(), False
        self.there.set()

    def nodes(self) -> list[dict[str, str]]:
        if self.raising:
            raise RuntimeError("planted")
        self.there.wait()
        return [{"NodeID": "a"}]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(module, "ASK_S", 0.02)
    monkeypatch.setattr(module, "LAST_CHANCE_S", 0.1)
    made = Machine()
    yield made
    made.there.set()


def missed_within(head: Head, seconds: float) -> ClusterLost | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            head.check()
        except ClusterLost as lost:
            return lost
        time.sleep(0.01)
    return None


@pytest.mark.parametrize("raising", [False, True])
def test_a_head_that_does_not_answer_is_missed(raising: bool, machine: Machine) -> None:
    head = Head(machine.nodes, PATIENCE_S)
    assert head.nodes() == [{"NodeID": "a"}] and not head.gone
    machine.raising = raising
    machine.there.clear()
    lost = missed_within(head, 10.0)
    assert (
        lost is not None
        and lost.exit_code == 5
        and "is gone" in str(lost)
        and "same command again, without --fresh, to resume" in str(lost)
        and ("s: planted)" in str(lost)) is raising
    )
    assert head.gone
    head.close()
    assert head.gone


def test_a_head_that_never_answers_is_missed_by_who_asks_for_nodes(machine: Machine) -> None:
    machine.there.clear()
    head = Head(machine.nodes, PATIENCE_S)
    with pytest.raises(ClusterLost):
        head.nodes()
    head.close()


def test_a_head_that_comes_back_in_time_is_not_missed(machine: Machine) -> None:
    head = Head(machine.nodes, 30.0)
    head.nodes()
    machine.there.clear()
    assert missed_within(head, 0.3) is None
    machine.there.set()
    heard_s = head._heard_s
    deadline = time.monotonic() + 10.0
    while head._heard_s == heard_s and time.monotonic() < deadline:
        time.sleep(0.01)
    assert head._heard_s > heard_s and not head.gone
    head.close()


def test_one_that_is_not_asked_any_more_is_not_missed(machine: Machine) -> None:
    """Releasing the slots may take longer than a head may be silent."""
    head = Head(machine.nodes, PATIENCE_S)
    head.nodes()
    head.close()
    time.sleep(2 * PATIENCE_S)
    assert not head.gone


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (ConnectionError("x"), True),
        (ValueError("Cannot invoke RPC on closed channel!"), True),
        (ValueError("x"), False),
    ],
)
def test_a_client_without_its_server_is_told_as_that(
    error: Exception, is_lost: bool, machine: Machine
) -> None:
    head = Head(machine.nodes, PATIENCE_S)
    with pytest.raises(ClusterLost if is_lost else ValueError), head.client_errors_as_lost():
        raise error
    assert head.gone == is_lost
    head.close()


def test_patience_is_a_share_of_rays_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, patience_s in (("600", 600.0), ("soon", module.RAYS_PATIENCE_S)):
        monkeypatch.setenv(module.RAYS_PATIENCE, text)
        assert module.rays_patience_s() == patience_s
    monkeypatch.delenv(module.RAYS_PATIENCE)
    assert module.rays_patience_s() == 60.0


def test_what_it_says_is_of_now(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After losing a node, one must not be told that it is still there."""
    monkeypatch.setattr(module, "ASK_S", 600.0)
    there = ["a", "b"]
    head = Head(lambda: [{"NodeID": name} for name in there], 30.0)
    assert len(head.nodes()) == 2
    there.remove("a")
    assert head.nodes() == [{"NodeID": "b"}]
    head.close()
