"""The dead-man: puts back what a process that is no more has left in the journal. No kernel object expires by itself.

It runs beside the agent as a process of its own and looks every few seconds. An entry is its owner's business for as long as the owner
lives: its pid and start time tell, or, where the dead-man has another pid namespace, the lock on the journal, which flock(2) keeps across
containers that share the directory and which the kernel drops when its holder dies. A live owner's entry is put back only once its deadline
is a minute past, for then the owner hangs; the lock is never taken from anybody, and such an entry stays for its owner to find.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vpa_ippr.actuator.cgroup import Cgroup
from vpa_ippr.actuator.journal import SECOND_AGENT, Entry, Journal, read_entries
from vpa_ippr.actuator.owner import Owner, is_alive
from vpa_ippr.actuator.restoring import Adopt, Drop, Leave, Restore, Verdict, decide, look, owner_holds
from vpa_ippr.api.clock import Clock
from vpa_ippr.api.errors import ActuatorError

_log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


class EntryCgroups(Protocol):
    """Where the cgroups of entries are found."""

    def of_entry(self, entry: Entry) -> Cgroup | None:
        """What bears the entry's name now."""
        ...

    def thaw(self, entry: Entry) -> None:
        """Let the processes of the entry's cgroup go on, if it is still the very one."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one entry. ``error`` says why it could not be put back yet."""

    entry: Entry
    verdict: Verdict
    error: str = ""
    was_alive: bool = False
    """Its owner lived, and it was put back all the same."""

    @property
    def text(self) -> str:
        """One line for a person."""
        if self.error:
            return f"cannot be put back yet: {self.error}"
        match self.verdict:
            case Restore(high_bytes):
                return f"memory.high is back at {'max' if high_bytes is None else high_bytes}"
            case Drop(why) | Leave(why):
                return ("nothing to put back: " if isinstance(self.verdict, Drop) else "left alone: ") + why
            case Adopt():
                return f"committed: memory.max stays {self.entry.target_bytes}, memory.high is as it was"


class Restorer:
    """Settles the entries of one journal.

    Args:
        directory: the journal's.
        boot_id: of this boot.
        cgroups: of this node.
        now: wall time and CLOCK_BOOTTIME, in seconds.
        alive: tells of a process whether it lives; None where that cannot be seen.
        page_bytes: the kernel's.
    """

    def __init__(
        self,
        directory: Path,
        boot_id: str,
        cgroups: EntryCgroups,
        now: Callable[[], tuple[float, float]],
        alive: Callable[[Owner], bool | None] = is_alive,
        page_bytes: int = 4096,
    ) -> None:
        self.directory = directory
        self._boot_id = boot_id
        self._cgroups = cgroups
        self._now = now
        self._alive = alive
        self._page_bytes = page_bytes

    def settle(self, *, everything: bool = False) -> tuple[Outcome, ...]:
        """Put back what may be; ``everything`` also what a live owner holds, and what a new agent would adopt.

        Raises:
            ActuatorError: the journal cannot be read.
        """
        if not read_entries(self.directory):
            return ()  # without the lock: an agent that is just starting must find it free
        journal = self._lock()
        if journal is None:
            return tuple(self._settle(entry, None, everything) for entry in read_entries(self.directory))
        try:
            return self.settle_own(journal, everything=everything)
        finally:
            journal.close()

    def settle_own(self, journal: Journal, *, everything: bool = False, only_standalone: bool = False) -> tuple[Outcome, ...]:
        """The same by who holds the journal: nobody else can be the owner of anything in it."""
        entries = (entry for entry in journal.entries() if not only_standalone or entry.cgroup_path is not None)
        return tuple(self._settle(entry, journal, everything) for entry in entries)

    def owner_state(self, entry: Entry, *, is_locked: bool) -> Leave | None:
        """Why an entry is its owner's business, or None."""
        wall, boottime = self._now()
        alive = self._alive(entry.owner) if entry.owner is not None else None
        return owner_holds(entry, is_locked=is_locked, is_alive=alive, boottime_seconds=boottime, wall_seconds=wall)

    def is_locked(self) -> bool:
        """Whether somebody holds the journal now."""
        journal = self._lock()
        if journal is not None:
            journal.close()
        return journal is None

    def _lock(self) -> Journal | None:
        try:
            return Journal(self.directory, self._boot_id)
        except ActuatorError as error:
            if error.reason != SECOND_AGENT:
                raise
            return None

    def _settle(self, entry: Entry, journal: Journal | None, everything: bool) -> Outcome:
        held = self.owner_state(entry, is_locked=journal is None)
        if held is not None and not everything:
            return Outcome(entry, held)
        try:
            verdict = self._put_back(entry)
            is_for_successor = isinstance(verdict, Adopt) and entry.cgroup_path is None and not everything
            if journal is not None and not is_for_successor:
                journal.drop(entry.shrink_uid)
        except ActuatorError as error:
            return Outcome(entry, Leave("it failed"), str(error))
        return Outcome(entry, verdict, was_alive=held is not None)

    def _put_back(self, entry: Entry) -> Restore | Drop | Adopt:
        cgroup = self._cgroups.of_entry(entry) if entry.boot_id == self._boot_id else None
        identity = cgroup.identity() if cgroup is not None else None
        if entry.may_be_frozen and identity == entry.cgroup_identity:
            self._cgroups.thaw(entry)
        verdict = decide(entry, self._boot_id, look(cgroup), identity, self._page_bytes)
        is_due = isinstance(verdict, Restore) or (isinstance(verdict, Adopt) and verdict.high_is_ours)
        if is_due and cgroup is not None:
            _restore(cgroup, entry.original_high_bytes)
        return verdict


def _restore(cgroup: Cgroup, high_bytes: int | None) -> None:
    cgroup.write_high(high_bytes)
    try:
        seen = cgroup.read()
    except ActuatorError:
        return  # written blindly, for it could not be read before either
    if seen is not None and seen.high_bytes != high_bytes:
        raise ActuatorError(f"memory.high reads {seen.high_bytes} after {high_bytes} was written")


class Observer(Protocol):
    """Is told what the dead-man does, in its own thread; must be quick and must not raise."""

    def settled(self, outcome: Outcome) -> None:
        """What became of an entry; once, as long as it stays the same."""
        ...

    def looked(self) -> None:
        """A round is over."""
        ...


class DeadMan:
    """Settles journals again and again, and says once what became of each entry."""

    def __init__(self, restorers: Sequence[Restorer], clock: Clock, observer: Observer | None = None) -> None:
        self._restorers = restorers
        self._clock = clock
        self._observer = observer
        self._said: dict[tuple[Path, str], str] = {}

    def run(self) -> None:
        """Until the clock is stopped."""
        self.look()
        while self._clock.wait_until(self._clock.now() + LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """One round."""
        for restorer in self._restorers:
            try:
                outcomes = restorer.settle()
            except Exception:  # noqa: BLE001 - the other journals are looked at all the same
                _log.exception("journal cannot be looked at: tries again", extra={"journal": str(restorer.directory)})
                continue
            self._tell(restorer.directory, outcomes)
        if self._observer is not None:
            self._observer.looked()

    def _tell(self, directory: Path, outcomes: Sequence[Outcome]) -> None:
        said = {(directory, outcome.entry.shrink_uid): outcome.text for outcome in outcomes}
        for outcome in outcomes:
            key = (directory, outcome.entry.shrink_uid)
            if self._said.get(key) != said[key]:
                level = logging.INFO if isinstance(outcome.verdict, Leave) and not outcome.error else logging.WARNING
                extra = {"shrink": outcome.entry.name, "phase": outcome.entry.phase, "outcome": outcome.text}
                _log.log(level, "journal entry without its owner" if level == logging.WARNING else "journal entry", extra=extra)
                if self._observer is not None:
                    self._observer.settled(outcome)
        self._said = {key: text for key, text in self._said.items() if key[0] != directory} | said
