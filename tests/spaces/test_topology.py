"""Cores and NUMA nodes as Linux shows them, on machines of several kinds, and what cpu_affinity makes of them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from machines import CPU, JOB, SURVEYED, job, machine

from autotune_spaces.base import Withdrawn
from autotune_spaces.facts import JobFacts
from autotune_spaces.knobs import create, get
from autotune_spaces.knobs.cpu_affinity import cpus_of
from autotune_spaces.topology import as_list, parse_list, read


def tree(root: Path, cores: list[str], nodes: list[str], file: str = "core_cpus_list") -> Path:
    """/sys/devices/system of a machine with these cores and nodes; "" is a node without CPUs."""
    for core in cores:
        for cpu in parse_list(core):
            folder = root / "cpu" / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True)
            (folder / file).write_text(core + "\n")
    for name in ("cpufreq", "cpuidle"):  # which are no CPUs
        (root / "cpu" / name).mkdir(parents=True, exist_ok=True)
    for index, node in enumerate(nodes):
        (root / "node" / f"node{index}").mkdir(parents=True)
        (root / "node" / f"node{index}" / "cpulist").write_text(node + "\n")
    return root


def surveyed(root: Path, cpus: str, **changes: object) -> JobFacts:
    found = read(root)
    survey = {"cores": [as_list(c) for c in found.cores], "nodes": [as_list(n) for n in found.nodes]}
    return dataclasses.replace(JOB, own_settings={"cpus": cpus}, surveys={"cpu_affinity": survey}, **changes)  # type: ignore[arg-type]


def values(facts: JobFacts, cores: int = 64, **options: object) -> tuple[object, ...]:
    return create("cpu_affinity", None, options.pop("values", None)).domain(machine(cores=cores), facts).values  # type: ignore[arg-type]


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
    # A mask that leaves out the first thread of a core takes the second.
    assert found.first_of_each_core({1, 4, 5, 6}) == {1, 4, 6}
    assert found.nodes_of({4, 5}) == ({4, 5},)


def test_older_kernels_and_bare_systems(tmp_path: Path) -> None:
    assert read(tree(tmp_path / "old", SMT, ["0-7"], "thread_siblings_list")).first_of_each_core(set(range(8))) == {0, 1, 2, 3}
    bare = read(tmp_path / "none")
    assert bare.first_of_each_core({0, 1}) == {0, 1}
    assert bare.nodes_of({0, 1}) == ()
    torn = tree(tmp_path / "torn", ["0,1"], ["0-1"])
    (torn / "node" / "node0" / "cpulist").write_text("what\n")
    assert read(torn).nodes == ()


def test_more_than_ten_nodes_keep_their_order(tmp_path: Path) -> None:
    assert [min(n) for n in read(tree(tmp_path, [], [str(i) for i in range(12)])).nodes] == list(range(12))


def test_what_there_is_to_choose(tmp_path: Path) -> None:
    both = tree(tmp_path / "both", SMT, ["0-1,4-5", "2-3,6-7"])
    assert values(surveyed(both, "0-7")) == ("all", "physical", "node-0", "node-1", "spare-1")
    assert values(surveyed(both, "0-7", loader=None)) == ("all", "physical", "node-0", "node-1")
    assert values(surveyed(both, "0-7"), cores=4) == ("all", "physical", "node-0", "node-1"), "a quota is no core to leave free"
    assert values(surveyed(both, "0-7", world_size=2)) == ("all", "physical", "node-per-rank")
    assert values(surveyed(both, "0,1,4,5")) == ("all", "physical", "spare-1"), "the job is on one node"
    assert values(surveyed(tree(tmp_path / "flat", ["0", "1", "2", "3"], ["0-3"]), "0-3")) == ("all", "spare-1")


def test_where_there_is_nothing_to_choose(tmp_path: Path) -> None:
    flat = surveyed(tree(tmp_path, ["0", "1"], ["0-1"]), "0-1")
    with pytest.raises(Withdrawn, match="nothing to choose on one NUMA node with 2 CPUs, no two of which share a core"):
        values(flat)
    assert values(flat, values=["0"]) == ("all", "0"), "asked for by name"
    with pytest.raises(Withdrawn, match=r"none of the CPUs 5-6 .* \(0-1\)"):
        values(flat, values=["5-6"])
    with pytest.raises(Withdrawn, match="none of the CPUs node-1"):
        values(flat, values=["node-1"])
    with pytest.raises(Withdrawn, match="GOMP_CPU_AFFINITY"):
        values(job(SURVEYED, own_settings={"cpus": "0-7", "GOMP_CPU_AFFINITY": "0-3"}))
    with pytest.raises(Withdrawn, match="does not say"):
        values(JOB)


def test_ranks_are_spread_in_their_order(tmp_path: Path) -> None:
    found, everything = read(tree(tmp_path, SMT, ["0-1,4-5", "2-3,6-7"])), frozenset(range(8))

    def node(rank: int | None, ranks: int) -> frozenset[int]:
        environ = {} if rank is None else {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        return cpus_of("node-per-rank", found, everything, environ)

    first, second = found.nodes
    assert [node(rank, 4) for rank in range(4)] == [first, first, second, second]
    assert [node(rank, 2) for rank in range(2)] == [first, second]
    assert node(0, 1) == first
    assert node(None, 2) == frozenset(), "a launcher is no rank: what it starts must still find all nodes"


def test_this_machine_is_read_right() -> None:
    """Against what the system's own tool says, where it is there."""
    import shutil
    import subprocess

    if shutil.which("lscpu") is None:
        pytest.skip("no lscpu to compare with")
    lines = subprocess.run(["lscpu", "-p=CPU,CORE,NODE"], capture_output=True, text=True, check=True).stdout.splitlines()
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
    if own != one:
        assert create("cpu_affinity", None, [one]).domain(CPU, facts).values == ("all", one)
