"""Limits of processor and memory from Linux control groups: versions 1 and 2, inside and outside a container."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from paceline import machine
from paceline.container import memory_left, processor_limit


def told(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_control_groups_processor_and_memory_are_unlimited(tmp_path: Path) -> None:
    assert processor_limit(tmp_path) == memory_left(tmp_path) == inf


def test_the_tightest_of_all_groups_around_counts(tmp_path: Path) -> None:
    groups = "sys/fs/cgroup/system.slice"
    root = told(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/one.service\n",
            f"{groups}/cpu.max": "250000 100000\n",
            f"{groups}/one.service/cpu.max": "max 100000\n",
            f"{groups}/memory.max": "max\n",
            f"{groups}/memory.current": "700\n",
            f"{groups}/one.service/memory.max": "1000\n",
            f"{groups}/one.service/memory.current": "600\n",
            f"{groups}/one.service/memory.stat": "anon 350\ninactive_file 200\n",
        },
    )
    assert processor_limit(root) == 2.5
    assert memory_left(root) == 600


def test_version_1_has_a_mount_for_each_controller_and_shows_a_container_its_own_only(tmp_path: Path) -> None:
    root = told(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "10000\n",
        },
    )
    assert processor_limit(root) == 0.5
    assert memory_left(root) == 0


def test_a_limit_is_what_threads_and_memory_are_reckoned_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "processor_limit", lambda: 0.3)
    monkeypatch.setattr(machine, "memory_left", lambda: 12_345.0)
    machine._allowed.cache_clear()
    try:
        assert machine.most_threads() == 1
        assert machine.free_bytes() == 12_345
    finally:
        machine._allowed.cache_clear()


def test_without_a_home_there_is_no_folder_for_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    assert machine.user_cache() is None
    with pytest.raises(OSError, match="no such home"):
        machine.expanded("~nobody/model")
