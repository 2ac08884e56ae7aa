"""Cores and NUMA nodes as shown by Linux, on various machines, and how cpu_affinity uses them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from machines import CPU, JOB, SURVEYED, job, machine

from autotune_spaces import gpus
from autotune_spaces.base import NotApplicable
from autotune_spaces.facts import JobFacts
from autotune_spaces.knobs import create, get
from autotune_spaces.knobs.cpu_affinity import cpus_of
from autotune_spaces.topology import as_list, parse_list, read


def tree(root: Path, cores: list[str], nodes: list[str]) -> Path:
    """/sys/devices/system of a machine with these cores and nodes; "" is a node without CPUs."""
    for core in cores:
        for cpu in parse_list(core):
            folder = root / "cpu" / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(core + "\n")
    for name in ("cpufreq", "cpuidle"):  # these are no CPUs
        (root / "cpu" / name).mkdir(parents=True, exist_ok=True)
    for index, node in enumerate(nodes):
        (root / "node" / f"node{index}").mkdir(parents=True)
        (root / "node" / f"node{index}" / "cpulist").write_text(node + "\n")
    return root


def surveyed(root: Path, cpus: str, **changes: object) -> JobFacts:
    found = read(root)
    survey = {
        "cores": [as_list(c) for c in found.cores],
        "nodes": [as_list(n) for n in found.nodes],
    }
    return dataclasses.replace(
        JOB, own_settings={"cpus": cpus}, surveys={"cpu_affinity": survey}, **changes
    )  # type: ignore[arg-type]


def values(facts: JobFacts, asked: list[str] | None = None) -> tuple[object, ...]:
    return create("cpu_affinity", None, asked).domain(machine(cores=64), facts).values


SMT = ["0,4", "1,5", "2,6", "3,7"]


def test_lists_of_cpus() -> None:
    for text in ("0", "0-3", "0-3,8,10-11", "1,3,5"):
        assert as_list(parse_list(text)) == text
    assert parse_list("") == frozenset()
    assert parse_list("3,0-1,1") == {0, 1, 3}
    for wrong in ("a", "3-1", "0-", "-1", "0;1", "1,,2", "0-999999"):
        with pytest.raises(ValueError, match="list of CPUs"):
            parse_list(wrong)


def test_two_nodes_with_two_threads_a_core(tmp_path: Path) -> None:
    found = read(tree(tmp_path, SMT, ["0-1,4-5", "2-3,6-7", ""]))
    everything = frozenset(range(8))
    assert [as_list(core) for core in found.cores] == SMT
    assert found.first_of_each_core(everything) == {0, 1, 2, 3}
    assert found.nodes_of(everything) == ({0, 1, 4, 5}, {2, 3, 6, 7})
    # If the mask leaves out the first thread of a core, the second is taken.
    assert found.first_of_each_core({1, 4, 5, 6}) == {1, 4, 6}
    assert found.nodes_of({4, 5}) == ({4, 5},)


def test_bare_systems(tmp_path: Path) -> None:
    bare = read(tmp_path / "none")
    assert bare.first_of_each_core({0, 1}) == {0, 1}
    assert bare.nodes_of({0, 1}) == ()
    torn = tree(tmp_path / "torn", ["0,1"], ["0-1"])
    (torn / "node" / "node0" / "cpulist").write_text("what\n")
    assert read(torn).nodes == ()


def test_more_than_ten_nodes_keep_their_order(tmp_path: Path) -> None:
    assert [min(n) for n in read(tree(tmp_path, [], [str(i) for i in range(12)])).nodes] == list(
        range(12)
    )


def test_what_there_is_to_choose(tmp_path: Path) -> None:
    both = tree(tmp_path / "both", SMT, ["0-1,4-5", "2-3,6-7"])
    assert values(surveyed(both, "0-7")) == ("all", "physical", "node-0", "node-1")
    assert values(surveyed(both, "0-7", world_size=2)) == ("all", "physical")
    assert values(surveyed(both, "0,1,4,5")) == ("all", "physical"), "the job is on one node"


def test_where_there_is_nothing_to_choose(tmp_path: Path) -> None:
    flat = surveyed(tree(tmp_path, ["0", "1"], ["0-1"]), "0-1")
    with pytest.raises(NotApplicable, match="nothing to choose: of the job's 2 CPUs no two share"):
        values(flat)
    assert values(flat, asked=["0"]) == ("all", "0"), "asked for by name"
    with pytest.raises(NotApplicable, match=r"none of the CPUs 5-6 .* \(0-1\)"):
        values(flat, asked=["5-6"])
    with pytest.raises(NotApplicable, match="none of the CPUs node-1"):
        values(flat, asked=["node-1"])
    with pytest.raises(NotApplicable, match="GOMP_CPU_AFFINITY"):
        values(job(SURVEYED, own_settings={"cpus": "0-7", "GOMP_CPU_AFFINITY": "0-3"}))


def test_this_machine_is_read_right() -> None:
    """Compare with the system's own tool, if there is one."""
    import shutil
    import subprocess

    if shutil.which("lscpu") is None:
        pytest.skip("no lscpu to compare with")
    lines = subprocess.run(
        ["lscpu", "-p=CPU,CORE,NODE"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = [line.split(",") for line in lines if not line.startswith("#")]
    found, cpus = read(), frozenset(int(cpu) for cpu, _, _ in rows)
    assert len(found.first_of_each_core(cpus)) == len({core for _, core, _ in rows})
    if all(node for _, _, node in rows):
        assert len(found.nodes_of(cpus)) == len({node for _, _, node in rows})


def test_the_survey_is_what_the_domain_reads() -> None:
    from autotune_spaces.base import Start

    survey = get("cpu_affinity").survey(Start((), {}, "/"))
    own = as_list(os.sched_getaffinity(0))
    facts = dataclasses.replace(JOB, own_settings={"cpus": own}, surveys={"cpu_affinity": survey})
    one = str(min(os.sched_getaffinity(0)))
    if own == one:
        pytest.skip("one CPU: there is nothing to choose")
    assert create("cpu_affinity", None, [one]).domain(CPU, facts).values == ("all", one)


# ---------------------------------------------------------------- gpu-node

SLOTS = ("0000:19:00.0", "0000:3b:00.0", "0001:0a:00.0")


def with_gpus(root: Path, nodes: dict[int, str], of_gpus: list[int], elsewhere: int = -1) -> Path:
    """A machine's NUMA ``nodes`` and GPUs, with the node of each.

    ``elsewhere``: the node of a GPU that belongs to another container.
    """
    tree(root / "sys", [], list(nodes.values()))
    (root / "dev").mkdir()
    for index, (slot, node) in enumerate(zip(SLOTS, of_gpus, strict=False)):
        (root / "driver" / slot).mkdir(parents=True)
        text = (
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{index}abc-{index}\nDevice Minor: \t"
            f" {index}\n"
        )
        (root / "driver" / slot / "information").write_text(text)
        (root / "pci" / slot).mkdir(parents=True)
        (root / "pci" / slot / "numa_node").write_text(f"{node}\n")
        (root / "pci" / slot / "local_cpulist").write_text(
            nodes.get(node, ",".join(nodes.values())) + "\n"
        )
        if index != elsewhere:
            (root / "dev" / f"nvidia{index}").touch()
    return root


def look_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in (("DRIVER", "driver"), ("PCI", "pci"), ("DEVICE_FILES", "dev")):
        monkeypatch.setattr(gpus, name, root / folder)


TWO_NODES = {0: "0-3", 1: "4-7"}


def on_gpus(root: Path, cpus: str, **changes: object) -> JobFacts:
    facts = surveyed(root / "sys", cpus, device="cuda", **changes)
    facts.surveys["cpu_affinity"]["gpus"] = [as_list(near) for near in gpus.near_gpus({})]
    return facts


def test_gpus_are_found_in_the_order_that_cuda_shows_them_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at(with_gpus(tmp_path, TWO_NODES, [1, 0, -1]), monkeypatch)
    first, second = parse_list("0-3"), parse_list("4-7")
    assert gpus.visible({}) == list(SLOTS)
    assert gpus.near_gpus({}) == (second, first, frozenset()), (
        "of the last one the firmware does not say"
    )
    assert gpus.near_gpus({"CUDA_VISIBLE_DEVICES": "1, 0"}) == (first, second)
    assert gpus.near_gpus({"CUDA_VISIBLE_DEVICES": "GPU-1abc,GPU-0"}) == (first, second)
    assert gpus.near_gpus({"CUDA_VISIBLE_DEVICES": "1,7,0"}) == (first,), (
        "CUDA stops at what it does not know"
    )
    for none in ("", "-1", "MIG-5fd4", "NoDevFiles"):
        assert gpus.near_gpus({"CUDA_VISIBLE_DEVICES": none}) == ()


def test_gpus_of_other_containers_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at(with_gpus(tmp_path, TWO_NODES, [0, 1], elsewhere=0), monkeypatch)
    assert gpus.visible({}) == [SLOTS[1]]
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "none")
    assert gpus.near_gpus({}) == ()


def test_the_gpus_node_takes_the_place_of_all_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at(with_gpus(tmp_path, TWO_NODES, [1, 0]), monkeypatch)
    assert values(on_gpus(tmp_path, "0-7")) == ("all", "gpu-node")
    assert values(on_gpus(tmp_path, "0-7", world_size=2)) == ("all", "gpu-node")
    found = dataclasses.replace(read(tmp_path / "sys"), gpus=gpus.near_gpus({}))
    cpus = [
        cpus_of("gpu-node", found, parse_list("0-6"), {"LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    assert list(map(as_list, cpus)) == ["4-6", "0-3"]


def test_a_gpu_whose_node_does_not_matter_or_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at(with_gpus(tmp_path / "unknown", TWO_NODES, [0, -1]), monkeypatch)
    unknown = on_gpus(tmp_path / "unknown", "0-7")
    assert values(unknown) == ("all", "node-0", "node-1")
    with pytest.raises(NotApplicable, match="does not report the GPU's NUMA node"):
        values(unknown, asked=["gpu-node"])
    look_at(with_gpus(tmp_path / "one", {0: "0-7"}, [0]), monkeypatch)
    with pytest.raises(NotApplicable, match="all on one NUMA node"):
        values(on_gpus(tmp_path / "one", "0-7"), asked=["gpu-node"])
    with pytest.raises(NotApplicable, match="trains on cpu"):
        values(SURVEYED, asked=["gpu-node"])


BOUND = """
import json, os, sys
from pathlib import Path
from autotune_spaces import gpus, topology
from autotune_spaces.knobs import at_start
root = Path(sys.argv[1])
gpus.DRIVER, gpus.PCI, gpus.DEVICE_FILES = root / "driver", root / "pci", root / "dev"
at_start(os.environ)
import torch
print(json.dumps([sorted(os.sched_getaffinity(0)), torch.get_num_threads()]))
"""


@pytest.mark.slow
def test_each_rank_runs_on_the_node_of_its_gpu(tmp_path: Path) -> None:
    own = sorted(os.sched_getaffinity(0))
    if len(own) < 2:
        pytest.skip("one CPU cannot be two nodes")
    root = with_gpus(tmp_path, {0: str(own[0]), 1: str(own[1])}, [1, 0])
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        **get("cpu_affinity").environment("gpu-node"),
    }
    environ.pop("OMP_NUM_THREADS", None)

    def bound(**more: str) -> list[object]:
        words = [sys.executable, "-c", BOUND, str(root)]
        done = subprocess.run(
            words, env={**environ, **more}, capture_output=True, text=True, check=True
        )
        return list(json.loads(done.stdout))

    assert bound(LOCAL_RANK="0") == [[own[1]], 1], "torch counts the cores it was left with"
    assert bound(LOCAL_RANK="1") == [[own[0]], 1]
    assert bound(LOCAL_RANK="1", CUDA_VISIBLE_DEVICES="0") == [[own[1]], 1], (
        "a rank that is shown its own GPU only"
    )
    assert bound() == [[own[1]], 1], "a job of one process is taken to use the first"


def test_a_rank_that_trains_on_another_gpu_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands in for torch.cuda: the PCI slot of the GPU trained on, which only the device knows."""
    own = sorted(os.sched_getaffinity(0))
    if len(own) < 2:
        pytest.skip("one CPU cannot be two nodes")
    look_at(
        with_gpus(tmp_path, {0: str(own[0]), 1: ",".join(map(str, own[1:]))}, [0, 1]), monkeypatch
    )
    monkeypatch.setenv("AUTOTUNE_OWN_CPUS", as_list(own))
    slots = [
        SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0) for bus in (0x19, 0x3B)
    ]
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda index: slots[index]))
    try:
        os.sched_setaffinity(0, own[:1])
        assert get("cpu_affinity").effect(SimpleNamespace(torch=torch, cuda=0), "gpu-node") is None
        told = get("cpu_affinity").effect(SimpleNamespace(torch=torch, cuda=1), "gpu-node")
    finally:
        os.sched_setaffinity(0, own)
    assert told is not None and SLOTS[1] in told
