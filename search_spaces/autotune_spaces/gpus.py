"""Which CPUs are near each GPU: those on the NUMA node of its PCI slot, according to Linux and
NVIDIA's driver.

    /proc/driver/nvidia/gpus/0000:19:00.0/information    "GPU UUID: GPU-5fd4…", "Device Minor: 0"
    /sys/bus/pci/devices/0000:19:00.0/numa_node          "1"; "-1" where the firmware does not say
    /sys/bus/pci/devices/0000:19:00.0/local_cpulist      "32-63", the CPUs of that node

Read from files, because cores are chosen before torch is imported, and CUDA does not survive a fork
once it is initialized. What cannot be read is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune_spaces.topology import parse_list

DRIVER = Path("/proc/driver/nvidia/gpus")
DEVICE_FILES = Path("/dev")
PCI = Path("/sys/bus/pci/devices")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def near_gpus(environ: Mapping[str, str]) -> tuple[frozenset[int], ...]:
    """CPUs near each GPU that CUDA shows to a process with this environment, in CUDA's order.

    An empty set for a GPU whose node is unknown; () if the GPUs themselves are unknown.
    """
    return tuple(near(slot) for slot in visible(environ))


def near(slot: str) -> frozenset[int]:
    """CPUs on the NUMA node of a PCI slot ("0000:19:00.0"); none if the system does not say."""
    try:
        if int((PCI / slot / "numa_node").read_text(encoding="ascii")) < 0:
            return frozenset()
        return parse_list((PCI / slot / "local_cpulist").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()


def visible(environ: Mapping[str, str]) -> list[str]:
    """PCI slots of the GPUs that CUDA shows to a process with this environment, in CUDA's order.

    MIG instances are not distinguished: [] for them.
    """
    slots = _slots()
    if VISIBLE not in environ:
        return list(slots)
    found: list[str] = []
    for word in map(str.strip, environ[VISIBLE].split(",")):
        if word.isdigit():
            named = list(slots)[int(word) : int(word) + 1]
        else:
            named = [
                s for s, uuid in slots.items() if word.startswith("GPU-") and uuid.startswith(word)
            ]
        if not named:
            break  # like CUDA, which ignores everything after an invalid entry
        found.append(named[0])
    return found


def slot_of(properties: Any) -> str:
    """The PCI slot in torch's device properties; "" from a torch version that lacks it."""
    if not hasattr(properties, "pci_bus_id"):
        return ""
    return (
        f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}"
        f":{properties.pci_device_id:02x}.0"
    )


def _slots() -> dict[str, str]:
    """Slot -> UUID of this machine's GPUs, sorted by slot, without those of other containers."""
    found = {}
    try:
        for folder in sorted(DRIVER.iterdir()):
            text = (folder / "information").read_text(encoding="utf-8", errors="replace")
            minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
            uuid = re.search(r"^GPU UUID:\s*(\S+)", text, re.MULTILINE)
            if minor and (DEVICE_FILES / f"nvidia{minor[1]}").exists():
                found[folder.name] = uuid[1] if uuid else ""
    except OSError:
        return {}
    return found
