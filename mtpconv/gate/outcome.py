"""What one check of the gate saw."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mtpconv.errors import Contradiction, MtpconvError
from mtpconv.inventory.findings import Finding


@dataclass(frozen=True, slots=True)
class Outcome:
    """A check by its stable id, what it looked at in a few words, and what it found.

    `ran` False: there was nothing to look at, and `text` says why. `stopped`: the check could not
    come to an end, and its finding says why; unless that is accepted there is no verdict. `extra`
    are keys of the report that it fills.
    """

    id: str
    text: str
    findings: tuple[Finding, ...] = ()
    ran: bool = True
    stopped: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)


def attempt(id: str, check: Callable[[], Outcome]) -> Outcome:
    """Run a check; what stops it becomes its finding, so that the other checks still run."""
    try:
        return check()
    except MtpconvError as error:
        return hindered(id, error)


def hindered(id: str, error: MtpconvError) -> Outcome:
    """What stopped a check as its finding; an input that contradicts itself is a verdict."""
    finding = Finding(error.id, "error", error.what, hint=error.mend)
    return Outcome(id, "see below", (finding,), stopped=not isinstance(error, Contradiction))


def having(findings: Iterable[Finding], *prefixes: str) -> tuple[Finding, ...]:
    """The findings whose id begins with one of `prefixes`."""
    return tuple(finding for finding in findings if finding.id.startswith(prefixes))
