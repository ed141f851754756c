"""The guest's file system: a ``newc`` archive made of three parts that the kernel unpacks one over the other.

    base     Python as it runs these tests, its library and what it links to   kept by interpreter
    modules  the kernel modules that the guest loads, dependencies first       kept by kernel
    payload  the project, these tests' guest side, the workloads               made for each boot

Nothing is mounted, nothing needs root. All of Python is compiled here, because emulation makes compiling it there take half of a boot.
"""

from __future__ import annotations

import lzma
import py_compile
import re
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import click
import jeepney
import msgspec
import prometheus_client
import urllib3

from kernel.harness.kernels import Kernel
from kernel.harness.places import GUEST_PAYLOAD, GUEST_TESTS, GUEST_WORKLOAD, REPOSITORY, HarnessError, built, digest

MODULES = ("virtio_pci", "virtio_blk", "zram", "lzo-rle", "ext4")
"""What the guest loads; one that is built in has no file and is passed over."""

_LEFT_OUT = frozenset(
    {
        "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data", "distutils",
        "sqlite3", "unittest", "venv", "xmlrpc", "dbm", "curses", "__pycache__",
    }
)  # fmt: skip
_LEFT_OUT_SUFFIXES = (".a", ".o", ".pyi", ".txt", ".html")
_NOT_IN_THE_AGENT = frozenset({"__pycache__", "_models", "backtest", "families", "forecast", "report", "sandbox", "usage"})
_PACKAGES = (click, jeepney, msgspec, prometheus_client, urllib3)
"""What the actuator's process loads beside the standard library."""


class Archive:
    """Writer of the kernel's ``newc`` format."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._inode = 0
        self._seen: set[str] = set()

    def directory(self, name: str) -> None:
        """A directory and those above it."""
        parts = name.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            self._once("/".join(parts[:depth]), stat.S_IFDIR | 0o755)

    def file(self, name: str, source: Path, mode: int | None = None) -> None:
        """A copy of a file of the host."""
        self.content(name, source.read_bytes(), stat.S_IMODE(source.stat().st_mode) if mode is None else mode)

    def python(self, name: str, source: Path) -> None:
        """A copy of a file; a module of Python comes with its bytecode, which the guest takes without looking at the source."""
        self.file(name, source)
        bytecode = _compiled(source) if source.suffix == ".py" else None
        if bytecode is not None:
            folder, _, base = name.rpartition("/")
            self.file(f"{folder}/__pycache__/{base.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc", bytecode)

    def content(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """A file with that content."""
        name = name.strip("/")
        if "/" in name:
            self.directory(name.rpartition("/")[0])
        self._once(name, stat.S_IFREG | mode, data)

    def device(self, name: str, major: int, minor: int) -> None:
        """A character device."""
        self.directory(name.rpartition("/")[0])
        self._once(name, stat.S_IFCHR | 0o600, device=(major, minor))

    def end(self) -> None:
        """The trailer."""
        self._entry("TRAILER!!!", 0, b"", (0, 0))

    def _once(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        if name not in self._seen:
            self._seen.add(name)
            self._entry(name, mode, data, device)

    def _entry(self, name: str, mode: int, data: bytes, device: tuple[int, int]) -> None:
        self._inode += 1
        raw = name.encode() + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0)
        head = b"070701" + "".join(f"{field:08x}" for field in fields).encode() + raw
        for part in (head, data):
            self._out.write(part + b"\0" * (-len(part) % 4))


def assemble(kernel: Kernel, workload: Path, out: Path) -> None:
    """Write the whole initial file system of one boot."""
    with out.open("wb") as file:
        for part in (_base(), _modules(kernel)):
            file.write(part.read_bytes())
        archive = Archive(file)
        _add_payload(archive, workload)
        archive.end()


def _base() -> Path:
    home = Path(sysconfig.get_paths()["stdlib"])
    key = digest([sys.version, str(home), str(_interpreter()), *sorted(_LEFT_OUT), Path(__file__).read_bytes()])

    def make(path: Path) -> None:
        with path.open("wb") as out:
            archive = Archive(out)
            for name in ("proc", "sys", "dev", "tmp", "run", "mnt", "var/lib"):
                archive.directory(name)
            archive.device("dev/console", 5, 1)
            archive.file(str(_interpreter()), _interpreter())
            for source in _sources(home, _LEFT_OUT):
                archive.python(str(source), source)
            binaries = [_interpreter(), *home.glob("lib-dynload/*.so"), *(so for p in _packages() for so in p.rglob("*.so"))]
            for name, library in sorted(_libraries(binaries).items()):
                archive.file(name, library, 0o755)
            archive.end()

    return built(f"base/{key}.cpio", make)


def _modules(kernel: Kernel) -> Path:
    def make(path: Path) -> None:
        with path.open("wb") as out:
            archive = Archive(out)
            for number, (name, data) in enumerate(_in_order(kernel.modules)):
                archive.content(f"lib/mods/{number:02d}-{name}.ko", data)
            archive.end()

    return built(f"modules/{kernel.release}-{digest(MODULES)}.cpio", make)


def _add_payload(archive: Archive, workload: Path) -> None:
    archive.file(GUEST_WORKLOAD, workload, 0o755)
    tests = Path(__file__).resolve().parents[2]
    trees = [
        *((f"{GUEST_PAYLOAD}/site", package.parent, package) for package in _packages()),
        (GUEST_PAYLOAD, REPOSITORY, REPOSITORY / "vpa_ippr"),
        *((GUEST_TESTS, tests, tests / "kernel" / folder) for folder in ("harness", "scenarios")),
    ]
    for prefix, root, tree in trees:
        for source in _sources(tree, _NOT_IN_THE_AGENT):
            archive.python(f"{prefix}/{source.relative_to(root)}", source)
    paths = [GUEST_TESTS, GUEST_PAYLOAD, f"{GUEST_PAYLOAD}/site"]
    init = f"#!{_interpreter()} -BsE\nimport sys\nsys.path[:0] = {paths}\nfrom kernel.harness.guest import main\nmain()\n"
    archive.content("init", init.encode(), 0o755)


def _compiled(source: Path) -> Path | None:
    """The bytecode; None where the source has an error, which whoever imports it in the guest will see."""

    def make(path: Path) -> None:
        py_compile.compile(str(source), str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)

    try:
        return built(f"pyc/{digest([sys.version, str(source), source.read_bytes()])}.pyc", make)
    except py_compile.PyCompileError:
        return None


def _interpreter() -> Path:
    return Path(sys.executable).resolve()


def _packages() -> list[Path]:
    return [Path(package.__file__).parent for package in _PACKAGES if package.__file__]


def _sources(root: Path, left_out: frozenset[str]) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.name in left_out or path.name.startswith("config-"):
            continue
        if path.is_dir():
            yield from _sources(path, left_out)
        elif not path.name.endswith(_LEFT_OUT_SUFFIXES):
            yield path


def _libraries(binaries: Iterable[Path]) -> dict[str, Path]:
    """Every shared library that one of them is linked to, by the name under which the loader looks for it."""
    found: dict[str, Path] = {}
    for binary in binaries:
        listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
        for name in re.findall(r"(/\S+\.so\S*)", listed):
            found[name] = Path(name).resolve()
    return found


def _in_order(modules: Path) -> list[tuple[str, bytes]]:
    """The wanted modules and what they depend on, which each names in its own ``depends=``; dependencies first."""
    index = {path.name.partition(".ko")[0].replace("-", "_"): path for path in modules.rglob("*.ko*")}
    ordered: dict[str, bytes] = {}

    def visit(name: str) -> None:
        name = name.replace("-", "_")
        if name in ordered or name not in index:
            return
        data = _read_module(index[name])
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for dependency in depends.group(1).decode().split(",") if depends else ():
            if dependency:
                visit(dependency)
        ordered[name] = data

    for name in MODULES:
        visit(name)
    return list(ordered.items())


def _read_module(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".ko":
        return path.read_bytes()
    raise HarnessError(f"kernel module {path.name} is packed in a way that is not known here")
