"""What an init has to do, in Python: mount, load modules, swap, power off. Runs in the guest only."""

from __future__ import annotations

import ctypes
import os
import struct
import time
import uuid
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
DISK = Path("/mnt")
MIB = 1 << 20

_FINIT_MODULE = 313
_SWAP_SIGNATURE_AT = 4086
_libc = ctypes.CDLL(None, use_errno=True)


def bring_up() -> None:
    """From the first instruction of init to a machine with its file systems, devices and controllers."""
    _mount("proc", "/proc", "proc")
    _mount("sysfs", "/sys", "sysfs")
    _mount("devtmpfs", "/dev", "devtmpfs")
    _mount("tmpfs", "/tmp", "tmpfs")  # noqa: S108 - this is the guest's own
    _mount("tmpfs", "/run", "tmpfs")
    Path("/dev/shm").mkdir(exist_ok=True)  # noqa: S108
    _mount("tmpfs", "/dev/shm", "tmpfs")  # noqa: S108
    _mount("cgroup2", str(CGROUPS), "cgroup2", "nsdelegate,memory_recursiveprot")
    for module in sorted(Path("/lib/mods").iterdir()):
        _load(module)
    _wait_for(Path("/dev/vda"))
    _mount("/dev/vda", str(DISK), "ext4")


def set_swap(size_mib: int) -> None:
    """A zram device of that size as the only swap; 0 for none."""
    device, control = Path("/dev/zram0"), Path("/sys/block/zram0")
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        _check(_libc.swapoff(bytes(device)), "swapoff")
        (control / "reset").write_text("1")
    if size_mib:
        (control / "disksize").write_text(f"{size_mib}M")
        _wait_for(device)
        header = bytearray(4096)
        struct.pack_into("<III16s", header, 1024, 1, size_mib * MIB // 4096 - 1, 0, uuid.uuid4().bytes)
        header[_SWAP_SIGNATURE_AT:] = b"SWAPSPACE2"
        with device.open("r+b") as swap:
            swap.write(header)
        _check(_libc.swapon(bytes(device), 0), "swapon")


def drop_caches() -> None:
    """Page cache belongs to the cgroup that read it first: without this, one scenario's would be missing in the next one's."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def power_off() -> None:
    """End the guest; what was not written is lost on purpose, for the disk is a throw-away."""
    Path("/proc/sysrq-trigger").write_text("o")
    time.sleep(60)


def _mount(source: str, target: str, kind: str, options: str = "") -> None:
    _check(_libc.mount(source.encode(), target.encode(), kind.encode(), 0, options.encode()), f"mount {target}")


def _load(module: Path) -> None:
    fd = os.open(module, os.O_RDONLY)
    try:
        _check(_libc.syscall(_FINIT_MODULE, fd, b"", 0), f"load {module.name}")
    finally:
        os.close(fd)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _wait_for(path: Path) -> None:
    for _ in range(100):
        if path.exists():
            return
        time.sleep(0.1)
    raise OSError(f"{path} did not appear")
