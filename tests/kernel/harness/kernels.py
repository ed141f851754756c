"""Debian's kernels: downloaded by apt, unpacked without root, never installed.

apt is used as the machine has it set up. For a suite that is not set up (a newer release's backports), a private apt directory below the
cache names only that suite, at the archive that apt already uses for Debian itself; the machine's own configuration is not touched.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kernel.harness.places import CACHE, HarnessError, built, remove

_KEYRINGS = Path("/usr/share/keyrings")


@dataclass(frozen=True)
class Wanted:
    """A family of kernels and the meta-packages that lead to it; a suite of None means the machine's own configuration."""

    sources: tuple[tuple[str | None, str], ...]
    pattern: str
    """What the release has to look like."""


FAMILIES = {
    "6.1": Wanted(((None, "linux-image-cloud-amd64"), ("bookworm", "linux-image-cloud-amd64")), r"6\.1\.\d"),
    "6.12": Wanted(
        (
            (None, "linux-image-6.12-cloud-amd64"),
            ("bookworm-backports", "linux-image-cloud-amd64"),
            ("trixie", "linux-image-cloud-amd64"),
        ),
        r"6\.12\.\d",
    ),
    "new": Wanted((("trixie-backports", "linux-image-cloud-amd64"),), r"6\.(?:1[6-9]|[2-9]\d)|[7-9]\.\d"),
}
"""``new`` is whatever of 6.16 or later Debian serves to its stable release: the first in which O_NONBLOCK on a limit is honoured."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel package."""

    family: str
    release: str
    image: Path
    modules: Path


def fetch(family: str) -> Kernel:
    """The family's kernel, from the cache or from Debian.

    Raises:
        HarnessError: it is not to be had here; the message says why.
    """
    return _unpacked(family, built(f"kernels/{family}", lambda folder: _download(family, folder)))


def _unpacked(family: str, folder: Path) -> Kernel:
    modules = next(path for above in ("lib", "usr/lib") for path in folder.glob(f"{above}/modules/*"))
    images = (folder / "boot" / f"vmlinuz-{modules.name}", modules / "vmlinuz")  # since 7.x it lies beside its modules
    return Kernel(family, modules.name, next(path for path in images if path.exists()), modules)


def _download(family: str, folder: Path) -> None:
    for tool in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise HarnessError(f"kernel {family}: {tool} is needed to fetch it from Debian, and is not here")
    wanted, failures = FAMILIES[family], []
    for suite, meta in wanted.sources:
        try:
            options = _suite_options(suite) if suite is not None else []
            package = _image_package(options, meta, wanted.pattern)
            for part in (package, *_parts_of(options, package)):
                _fetch_package(options, part, folder)
        except HarnessError as error:
            failures.append(f"{suite or 'the suites set up here'}: {error}")
        else:
            return
    raise HarnessError(f"kernel {family} is not to be had from Debian here: {'; '.join(failures)}")


def _image_package(options: list[str], meta: str, pattern: str) -> str:
    """The real package behind a meta-package."""
    listed = _run(["apt-cache", *options, "depends", "--important", meta])
    found = re.search(rf"Depends: (linux-image-(?:{pattern})\S*)", listed)
    if found is None:
        raise HarnessError(f"{meta} leads to no kernel of this family")
    return found.group(1)


def _parts_of(options: list[str], package: str) -> list[str]:
    """Newer packages of a kernel are empty and lead to one with its image and one with its modules."""
    return re.findall(r"Depends: (linux-(?:binary|modules)-\S+)", _run(["apt-cache", *options, "depends", "--important", package]))


def _fetch_package(options: list[str], package: str, folder: Path) -> None:
    downloads = folder.with_name(f"{folder.name}.download")
    downloads.mkdir(parents=True, exist_ok=True)
    try:
        # As root, apt drops to a user of its own for downloads, who may not write below our cache: it says so and goes on as root.
        _run(["apt-get", *options, "-o", "APT::Sandbox::User=root", "download", "-q", package], cwd=downloads)
        _run(["dpkg-deb", "-x", str(next(downloads.glob("*.deb"))), str(folder)])
    finally:
        remove(downloads)


def _suite_options(suite: str) -> list[str]:
    """apt options for a private configuration that holds this one suite of Debian."""
    home = CACHE / "apt" / suite
    for folder in ("lists/partial", "archives/partial", "parts"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    (home / "sources.list").write_text(f"deb [signed-by={_keyring()}] {_debian_archive()} {suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": home / "sources.list",
        "Dir::Etc::sourceparts": home / "parts",
        "Dir::Etc::preferencesparts": home / "parts",
        "Dir::State::lists": home / "lists",
        "Dir::Cache": home,
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    _run(["apt-get", *options, "update", "-q", "--error-on=any"])
    return options


def _debian_archive() -> str:
    """The archive from which this machine takes Debian itself."""
    listed = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)", "Created-By: Packages"])
    for line in listed.splitlines():
        uri, _, origin = line.partition(" ")
        if origin == "Debian Debian":
            return uri
    raise HarnessError("apt knows no archive of Debian here: run apt-get update once")


def _keyring() -> Path:
    keyring = _KEYRINGS / "debian-archive-keyring.gpg"
    if not keyring.exists():
        raise HarnessError("Debian's archive keys are not here: install debian-archive-keyring")
    return keyring


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise HarnessError(f"{command[0]} failed: {last}")
    return done.stdout
