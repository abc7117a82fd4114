"""Facts about the machine and the software of a benchmark run."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_IN_MEMORY = {"tmpfs", "ramfs"}

BUSY_SHARE = 0.25
"""The load average, as a share of the cores, above which results are unreliable."""
LOOPS = 1_000_000
LOOP_SAMPLES = 5


def machine_facts(data_directory: Path) -> dict[str, str]:
    device, file_system = _mount(data_directory)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{_system()}, Linux {platform.release()}",
        "disk": f"{file_system} on {device}",
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "Quire": f"{_version('quire')}, {_commit()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}, "
        f"uvloop {_version('uvloop')}, a loop of {LOOPS:,} additions in {_loop_ms():.0f} ms",
        "Apache BookKeeper": _apache_version(),
        "Java": _java_version(),
    }


def warnings_about(facts: dict[str, str]) -> list[str]:
    found = []
    if facts["disk"].split()[0] in _IN_MEMORY:
        found.append("the data directory is in memory, so the results say nothing about a disk")
    if float(facts["load average before"]) > BUSY_SHARE * (os.cpu_count() or 1):
        found.append("the machine was busy before the run, so both sides are measured too low")
    return found


def _loop_ms() -> float:
    """Return the milliseconds of a loop of additions, as a measure of this Python's speed.

    Builds of the same version differ by a factor of up to 1.4, and a build does not always describe
    its options correctly.
    """
    samples = []
    for _ in range(LOOP_SAMPLES):
        began, total = time.perf_counter(), 0
        for number in range(LOOPS):
            total += number
        samples.append(time.perf_counter() - began)
    return min(samples) * 1e3


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return re.sub(r"\s+", " ", line.partition(":")[2]).strip()
    return platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _mount(directory: Path) -> tuple[str, str]:
    """Return the device and the file system type of the mount that contains the directory."""
    best: tuple[int, str, str] = (-1, "?", "?")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, point, kind = line.split()[:3]
        if directory.is_relative_to(point) and len(point) >= best[0]:
            best = (len(point), device, kind)
    return best[1], best[2]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _output(*command: str) -> str:
    try:
        result = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return ""
    return (result.stdout + result.stderr).strip() if result.returncode == 0 else ""


def _commit() -> str:
    commit = _output("git", "rev-parse", "--short", "HEAD")
    if not commit:
        return "commit unknown"
    changed = _output("git", "status", "--porcelain", "--untracked-files=no", "--", "src")
    return f"commit {commit}{' with changes' if changed else ''}"


def _java_version() -> str:
    match = re.search(r'version "([^"]+)"', _output("java", "-version"))
    return match[1] if match else "none"


def _apache_version() -> str:
    """Return the version that `bench/peer/apache` runs."""
    if chosen := os.environ.get("APACHE_VERSION"):
        return chosen
    pom = (_ROOT / "bench" / "peer" / "pom.xml").read_text()
    match = re.search(r"<bookkeeper\.version>([^<]+)<", pom)
    return match[1] if match else "?"
