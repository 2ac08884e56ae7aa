"""Where the memory cgroup of a process counts the kernel's kills, according to /proc's mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune_trials.diagnosis.oom_kills import candidates, read

TAIL = "rw,nosuid,relatime shared:9 - {} {} {}"
UNIFIED = f"30 25 0:26 / /sys/fs/cgroup {TAIL.format('cgroup2', 'cgroup2', 'rw')}"
MEMORY = f"35 31 0:32 / /sys/fs/cgroup/memory {TAIL.format('cgroup', 'cgroup', 'rw,memory')}"
CPU = f"32 31 0:29 / /sys/fs/cgroup/cpu {TAIL.format('cgroup', 'cgroup', 'rw,cpu')}"
IN_DOCKER = (
    f"35 31 0:32 /docker/4f1a /sys/fs/cgroup/memory {TAIL.format('cgroup', 'cgroup', 'ro,memory')}"
)


@pytest.mark.parametrize(
    ("mount", "kind", "path", "counter"),
    [
        (
            UNIFIED,
            "cgroup2",
            "/user.slice/session-2.scope",
            "/sys/fs/cgroup/user.slice/session-2.scope/memory.events",
        ),
        # a container with its own namespace
        (UNIFIED, "cgroup2", "/", "/sys/fs/cgroup/memory.events"),
        (UNIFIED, "cgroup", "/", None),
        (MEMORY, "cgroup", "/job", "/sys/fs/cgroup/memory/job/memory.oom_control"),
        (CPU, "cgroup", "/job", None),
        (IN_DOCKER, "cgroup", "/docker/4f1a", "/sys/fs/cgroup/memory/memory.oom_control"),
        (IN_DOCKER, "cgroup", "/docker/4f1a/job", "/sys/fs/cgroup/memory/job/memory.oom_control"),
        (IN_DOCKER, "cgroup", "/docker/other", None),
    ],
)
def test_where_a_cgroup_counts(mount: str, kind: str, path: str, counter: str | None) -> None:
    assert candidates([CPU, mount], kind, path) == ([Path(counter)] if counter else [])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("low 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("oom_kill_disable 0\nunder_oom 0\n", None),
    ],
)
def test_both_kinds_of_counter_are_read(text: str, count: int | None, tmp_path: Path) -> None:
    (tmp_path / "counter").write_text(text)
    assert read(tmp_path / "counter") == count
    assert read(tmp_path / "gone") is None
