"""Which slots a cluster has, which of them are alike, and what is shipped to them. Needs no
cluster.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys
import zipfile
from collections import Counter
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autotune import __version__, running
from autotune.errors import InputError
from autotune.executors.cluster import workdir
from autotune.executors.cluster.answers import Answer, SlotFacts, answered, relocated
from autotune.executors.cluster.connection import connect
from autotune.executors.cluster.executor import RayExecutor
from autotune.executors.cluster.lane import Lane
from autotune.executors.cluster.likeness import largest_group, unlike
from autotune.executors.cluster.places import Place, groups, places
from autotune.executors.cluster.slot import Slot
from autotune.job import package
from autotune.job.load import load_job
from autotune.journal import Journal
from autotune_spaces.facts import JobFacts, Machine
from autotune_spaces.topology import Topology
from autotune_trials.protocol.messages import BlockReport, Hello
from autotune_trials.session.session import SessionFailed

A100 = Machine(
    32, 256.0, 64.0, "cuda", "A100", "2.13.0", "3.11", "EPYC", device_count=4, cuda_version="12.8"
)


def node(name: str, alive: bool = True, **resources: float) -> dict:
    return {"NodeID": name * 8, "Alive": alive, "NodeManagerHostname": name, "Resources": resources}


def found(options: dict, *nodes: dict) -> list[tuple[str, float, float]]:
    return [(p.name, p.cpus, p.gpus) for p in places(nodes, options)]


def test_a_node_is_one_slot_as_a_whole() -> None:
    nodes = (
        node("head", CPU=0.0),
        node("a", CPU=32.0, GPU=4.0),
        node("b", CPU=8.0),
        node("c", alive=False, CPU=8.0),
    )
    assert found({}, *nodes) == [("a-aaaaaa", 32.0, 4.0), ("b-bbbbbb", 8.0, 0.0)]


def test_shares_of_gpus_come_with_their_cores() -> None:
    shares = list(places([node("a", CPU=32.0, GPU=4.0), node("b", CPU=8.0)], {"gpus_per_slot": 2}))
    assert [(p.name, p.cpus, p.gpus) for p in shares] == [
        ("a-aaaaaa.0", 16.0, 2),
        ("a-aaaaaa.1", 16.0, 2),
    ]
    cores = [p.cores(range(32)) for p in shares]
    assert cores == [tuple(range(16)), tuple(range(16, 32))]


def test_slots_of_a_node_share_no_core() -> None:
    """Its hardware threads are numbered as usual: a core's second one comes half the way up."""
    cores = tuple(frozenset({cpu, cpu + 4}) for cpu in range(4))
    machine = Topology(cores, (frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7})))
    first, second = places([node("a", CPU=8.0)], {"cpus_per_slot": 4})
    order = machine.in_order(range(8))
    assert set(first.cores(order)) == {0, 4, 2, 6} and set(second.cores(order)) == {1, 5, 3, 7}


def test_every_slot_of_a_node_with_gpus_has_one_of_its_own() -> None:
    """Ray hides no GPU from an actor that reserves none: two trials would train on the first."""
    shares = found({"cpus_per_slot": 8}, node("a", CPU=32.0, GPU=2.0), node("b", CPU=32.0))
    assert [gpus for name, _, gpus in shares if name.startswith("a")] == [1, 1]
    assert len([name for name, _, _ in shares if name.startswith("b")]) == 4


def test_a_resource_marks_nodes() -> None:
    nodes = node("a", CPU=32.0, GPU=4.0, tuning=2.0), node("b", CPU=32.0, GPU=4.0)
    assert found({"resource": "tuning"}, *nodes) == [
        ("a-aaaaaa.0", 16.0, 2.0),
        ("a-aaaaaa.1", 16.0, 2.0),
    ]
    assert found({"resource": "tuning", "cpus_per_slot": 24}, *nodes) == [("a-aaaaaa", 24, 4.0)]
    several = {"resource": "tuning", "nodes_per_slot": 2}
    assert found(several, *nodes) == [("a-aaaaaa", 32.0, 4.0)], "whole nodes"


def test_slots_of_two_nodes_are_of_one_kind_and_stay_as_long_as_their_nodes_do() -> None:
    nodes = [node(name, CPU=32.0) for name in "abcde"]
    nodes.insert(1, node("small", CPU=8.0))
    first = list(groups(places(nodes, {}), 2, []))
    assert [[n[0] for n in group.nodes] for group in first] == [["a", "b"], ["c", "d"]], (
        "e waits for another one"
    )
    assert first[0].name == "a-aaaaaa+bbbbbb" and first[0].cpus == 32.0
    without_a = [n for n in nodes if n["NodeManagerHostname"] != "a"]
    then = list(groups(places(without_a, {}), 2, first))
    assert then[0] == first[1], "in use, and nothing has happened to it"
    assert [n[0] for n in then[1].nodes] == ["b", "e"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device_name": "H100"}, "A100 on the other slots, H100"),
        ({"device_count": 8}, "devices"),
        ({"cores": 16}, "cores: 32"),
        ({"cpu_model": "Xeon"}, "EPYC"),
        ({"torch_version": "2.12.0"}, "torch"),
        ({"memory_gib": 128.0}, "memory: 256 GiB"),
        ({"device": "cpu"}, "device: cuda"),
    ],
)
def test_unlike_machines_are_told_apart(change: dict, said: str) -> None:
    assert said in unlike(A100, replace(A100, **change))


def test_what_does_not_matter_is_no_difference() -> None:
    assert (
        unlike(
            A100,
            replace(
                A100, memory_gib=250.0, shm_gib=10.0, available_gib=3.0, python_version="3.11.9"
            ),
        )
        == ""
    )


def test_the_largest_group_is_used_and_of_two_the_first() -> None:
    small = replace(A100, cores=16)
    assert largest_group([small, A100, A100]) == A100
    assert largest_group([small, A100]) == small
    head = replace(A100, device="cpu", device_name="EPYC", device_count=0)
    assert largest_group([head, A100]) == A100, "a job that would train on the head's CPU instead"
    assert largest_group([head, head, A100]) == head


def test_a_resumed_run_uses_machines_like_its_first_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As slots describe themselves: torch calls a MIG slice otherwise, and counts only the GPUs
    that the job leaves it.
    """
    asked: list[Machine | None] = []

    def opened(*_: object, like: Machine | None, **__: object) -> Any:
        asked.append(like)
        return SimpleNamespace(like=like or A100)

    monkeypatch.setattr(running, "executor_for", opened)
    for _ in range(2):
        with closing(Journal(tmp_path / "journal.jsonl", lambda before: before)) as journal:
            running.open_executor(cast(Any, None), tmp_path, journal, print, print)
    assert asked == [None, A100]


def test_answers_carry_failures_and_mistakes_as_data() -> None:
    def fails() -> None:
        failure = SessionFailed(
            "oom", "too much", log_tail="tail", where="train.py:3", directory="/x"
        )
        failure.partial = (BlockReport("b1", 0, None),)
        raise failure

    def mistaken() -> None:
        raise InputError("found", where="there", expected="that", remedy="this")

    with pytest.raises(SessionFailed) as failure:
        pickle.loads(pickle.dumps(answered(fails))).get()
    assert (failure.value.kind, failure.value.where, failure.value.partial[0].id) == (
        "oom",
        "train.py:3",
        "b1",
    )
    with pytest.raises(InputError, match="found"):
        pickle.loads(pickle.dumps(answered(mistaken))).get()
    assert Answer(3).get() == 3


def test_a_full_disk_of_a_node_is_told_with_the_node() -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/autotune-slot-1/outbox.tar.gz")

    with pytest.raises(InputError, match="No space left on device") as told:
        pickle.loads(pickle.dumps(answered(full))).get()
    assert told.value.where == f"/tmp/autotune-slot-1/outbox.tar.gz on node {os.uname().nodename}"
    assert told.value.remedy == "free some space, then run the same command again"


def test_directories_are_called_as_they_are_here() -> None:
    hello = Hello(
        1,
        0,
        A100,
        JobFacts(1, "cpu", None, (), ()),
        0.5,
        {"sites": ['/tmp/slot "x"/work/train.py:3']},
    )
    told = relocated(hello, {'/tmp/slot "x"/work': "/home/me/job"})
    assert told.fingerprint == {"sites": ["/home/me/job/train.py:3"]} and told.machine == A100


def test_what_autotune_submit_would_send_is_shipped_without_our_own_output(tmp_path: Path) -> None:
    job = tmp_path / "job"
    for name in (
        "train.py",
        "out/run[1]/journal.jsonl",
        "out/kept.txt",
        ".venv/x",
        ".env",
        "id_rsa",
    ):
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text("")
    (job / "data").symlink_to(tmp_path)
    (job / "checkpoints").mkdir()
    warnings: list[str] = []
    environment = workdir.runtime_environment(
        job, job / "out" / "run[1]", tmp_path / "job.zip", warnings.append
    )
    assert environment == {"working_dir": str(tmp_path / "job.zip")}
    with zipfile.ZipFile(tmp_path / "job.zip") as archive:
        assert archive.namelist() == ["checkpoints/", "out/kept.txt", "train.py"]
    assert len(warnings) == 1 and f"{job / 'data'}, because it is a link" in warnings[0]


def test_what_a_submitted_job_was_shipped_with_is_not_shipped_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        package.JOB_CONFIG, json.dumps({"runtime_env": {"working_dir": "gcs://package.zip"}})
    )
    assert workdir.runtime_environment(tmp_path / "job", tmp_path / "run", Path("unused")) == {}
    assert workdir.inside_shipped(tmp_path / "job") == "job"
    with pytest.raises(InputError, match="not part of what was submitted"):
        workdir.inside_shipped(Path("/usr"))


def test_a_directory_is_known_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a")
    first = workdir.files_in(tmp_path)
    assert not workdir.same_files(tmp_path, None), "it cannot be read there"
    (tmp_path / "mlflow.db").write_text("ours")
    (tmp_path / ".hidden").write_text("x")
    assert workdir.same_files(tmp_path, first)
    with open(tmp_path / "tune.log", "w") as redirected:
        redirected.write("slot a is ready")
        redirected.flush()
        assert workdir.same_files(tmp_path, first), "our own output"
    assert not workdir.same_files(tmp_path, first)
    os.remove(tmp_path / "tune.log")
    os.utime(tmp_path / "train.py", (1, 1))
    assert not workdir.same_files(tmp_path, first)


def test_nobody_answers_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(
        "command: python train.py\nexecutor: {ray: {address: '127.0.0.1:1'}}\n"
    )
    with pytest.raises(InputError, match="no Ray cluster answers at 127.0.0.1:1"):
        connect(load_job(tmp_path / "job.yaml"), tmp_path / "run")


def test_a_cluster_is_reached_from_outside_by_rays_client_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)  # as if not installed
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(
        "command: python train.py\nexecutor: {ray: {address: 'ray://127.0.0.1:1'}}\n"
    )
    with pytest.raises(InputError, match="Ray's client, which is not installed") as refused:
        connect(load_job(tmp_path / "job.yaml"), tmp_path / "run")
    assert "ray[client]" in refused.value.remedy


def test_a_directory_too_large_to_ship_is_said_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "data.bin").touch()
    os.truncate(tmp_path / "data.bin", 600 << 20)
    with pytest.raises(InputError, match="600 MiB to send") as refused:
        workdir.runtime_environment(tmp_path, tmp_path / "run", tmp_path / "job.zip")
    assert "500 MiB" in refused.value.expected and "workdir: shared" in refused.value.remedy


def test_a_place_keeps_its_name() -> None:
    assert Place("abcdef0123", "host", 1, 2, 8.0, 1.0).name == "host-abcdef.1"


def test_a_slot_that_lost_a_node_gives_up_its_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would hold them for it, and no new slot could have them."""
    place = Place("a" * 8, "a", 0, 1, cpus=4.0, gpus=0.0, others=("b" * 8,))
    nodes = [node("a", CPU=4.0), node("b", alive=False, CPU=4.0), node("c", CPU=4.0)]
    ended: list[bool] = []
    executor: Any = object.__new__(RayExecutor)
    executor._options, executor.spec = {"nodes_per_slot": 2}, SimpleNamespace(reads_energy=False)
    executor._starting, executor._waiting, executor._out, executor._used = {}, [], {}, []
    executor._starts = Counter()
    executor._head = SimpleNamespace(nodes=lambda: nodes)
    actors: Any = SimpleNamespace(
        slot=None, group=None, outposts=(), end=lambda: ended.append(True)
    )
    parts: Any = (None, None, executor, executor._head)
    slot = Lane(place, actors, *parts)
    executor._slots = {place: slot}
    monkeypatch.setattr(RayExecutor, "_start", lambda self, place: None)
    monkeypatch.setattr(RayExecutor, "_collect", lambda self: None)
    executor._look()
    assert slot.gone and ended == [True] and not executor._slots
    slot.stretches, slot.first_epoch_s = False, 3.0  # learned of the job, not of the slot
    assert (executor.stretches, executor.first_epoch_s) == (False, 3.0)


def test_other_use_of_a_slots_gpus_is_said() -> None:
    """Ray keeps a GPU for us, but only from those who ask Ray."""
    said: list[str] = []
    executor: Any = object.__new__(RayExecutor)
    executor.like, executor._inside, executor._head = A100, ".", None
    executor._sessions, executor._slots, executor._used = None, {}, []
    executor._say, executor._warn = (lambda text: None), said.append
    places = [Place("a" * 8, "a", index, 2, 8.0, 1.0) for index in range(2)]
    idle = SlotFacts(1, A100, __version__, None, (0,))
    busy = replace(idle, gpu_load=("GPU 3: 20.0 GiB in use, busy 97% of the time",))
    actors: Any = SimpleNamespace(slot=None)
    executor._waiting = [(places[0], actors, idle), (places[1], actors, busy)]
    executor._admit()
    assert list(executor._slots) == places
    assert len(said) == 1 and "slot a-aaaaaa.1 (GPU 3: 20.0 GiB in use" in said[0]


@pytest.mark.parametrize(
    ("device", "chosen", "shares", "refused"),
    [
        ("cuda", "2", True, False),
        ("cuda", "0", True, True),
        ("cuda", "", True, True),
        ("cuda", "0", False, False),  # its choice among a whole node's GPUs
        ("cpu", "", True, False),
    ],
)
def test_a_job_that_chooses_its_gpus_itself_is_refused_on_a_share_of_a_node(
    device: str, chosen: str, shares: bool, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.environ["CUDA_VISIBLE_DEVICES"] = "0" in its code: all slots would train on that one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    slot: Any = object.__new__(Slot)
    slot._shares, slot._spec = shares, SimpleNamespace(command=("python", "train.py"))
    own = {"CUDA_VISIBLE_DEVICES": chosen} if chosen else {}
    job = JobFacts(1, device, None, (), (), own_settings=own)
    with pytest.raises(InputError, match="itself") if refused else nullcontext():
        slot._require_own_gpus(Hello(1, 0, A100, job, 0.5, {}))
