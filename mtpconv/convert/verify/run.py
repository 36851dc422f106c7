"""`mtpconv verify`: a folder's bytes against the digests or hub hashes that came with them."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mtpconv.convert.digest_file import read_digests
from mtpconv.convert.execute import THREADS
from mtpconv.convert.hf import DIGESTS, WEIGHTS, is_hf, require_folder
from mtpconv.convert.manifest import MANIFEST, manifest_digests
from mtpconv.convert.mcore import iteration_folder
from mtpconv.convert.progress import Advance, Progress, silent
from mtpconv.convert.ranks import job
from mtpconv.convert.verify.hub_hashes import file_hash, hub_hashes
from mtpconv.convert.verify.spans import Damage
from mtpconv.convert.verify.together import check_together
from mtpconv.convert.written import Written
from mtpconv.errors import FormatError
from mtpconv.inventory.findings import Finding, errors
from mtpconv.inventory.render_text import counted, size_text
from mtpconv.inventory.report import Check, Report, status_counts


@dataclass(frozen=True, slots=True)
class Known:
    """What the files of `folder` are to be: `files` by our digests (from `source`), `hashes`."""

    folder: Path
    source: str
    files: Mapping[str, Written]
    hashes: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        """Bytes to be read."""
        sizes = sum(file.size for file in self.files.values())
        paths = (self.folder / name for name in self.hashes)
        return sizes + sum(path.stat().st_size for path in paths if path.is_file())


def verify(folder: Path, threads: int = THREADS, progress: Progress = silent) -> Report:
    """Read every file that `folder` has a digest or hub hash of, and name what is damaged.

    `folder` is an HF folder, a Megatron iteration, or the root of one. Raises FormatError where
    there is nothing to verify against.
    """
    known = known_bytes(folder)
    if not known.files and not known.hashes:
        raise FormatError(
            "verify/nothing",
            f"{folder}: no {DIGESTS}, no digests in {MANIFEST}, no hashes of the hub beside it",
            "compare it with its source: mtpconv diff",
        )
    return verify_known(known, threads, progress)


def verify_known(known: Known, threads: int, progress: Progress) -> Report:
    """Read what is known and report what differs."""
    advance = progress("reading from the disk", known.nbytes)
    findings = [
        *damage_findings(check_together(known.folder, known.files.values(), threads, advance)),
        *(_hash_findings(known, threads, advance) if job().leads else ()),
        *_unlisted(known),
    ]
    return _report(known, tuple(findings))


def known_bytes(folder: Path) -> Known:
    """What is known of the bytes of `folder`, be it nothing.

    Raises FormatError for no folder of a checkpoint, or digests that cannot be read.
    """
    require_folder(folder)
    listed = read_digests(folder / DIGESTS)
    if listed is not None or (is_hf(folder) and not (folder / MANIFEST).is_file()):
        files = listed or {}
        hashes = {name: own for name, own in hub_hashes(folder).items() if name not in files}
        return Known(folder, DIGESTS if files else "", files, hashes)
    found = folder if (folder / MANIFEST).is_file() else iteration_folder(folder)
    files = manifest_digests(found) or {}
    return Known(found, MANIFEST if files else "", files, {})


def damage_findings(damages: Iterable[Damage]) -> Iterator[Finding]:
    """Each damage as an error that names the tensor and its file."""
    for damage in damages:
        if damage.tensor:
            message = f"{damage.tensor} in {damage.file} {damage.what}"
            yield Finding(
                "verify/damaged",
                "error",
                message,
                "changed",
                damage.tensor,
                damage.file,
                hint=f"in {damage.file}",
            )
        else:
            yield _file_finding("verify/file", damage.file, damage.what)


def _file_finding(id: str, file: str, what: str) -> Finding:
    return Finding(id, "error", f"{file}: {what}", name=file)


def _hash_findings(known: Known, threads: int, advance: Advance) -> Iterator[Finding]:
    """Files that are not what the hub says; only weights are an error, the rest may be edited."""

    def one(item: tuple[str, str]) -> Finding | None:
        name, expected = item
        weights = name.endswith(WEIGHTS)
        try:
            if file_hash(known.folder / name, expected, advance) == expected:
                return None
        except OSError as error:
            what = f"{name}: cannot be read ({error.strerror})"
            return Finding("verify/file", "error" if weights else "warning", what, name=name)
        if weights:
            return _file_finding("verify/file", name, "other bytes than the hub's")
        return Finding("verify/edited", "warning", f"{name} is not the hub's", name=name)

    with ThreadPoolExecutor(threads) as pool:
        try:
            yield from filter(None, pool.map(one, known.hashes.items()))
        finally:
            pool.shutdown(cancel_futures=True)


def _unlisted(known: Known) -> Iterator[Finding]:
    """Weights that nothing was known of, so that a pass is not taken for theirs."""
    for path in sorted([*known.folder.glob("*.safetensors"), *known.folder.glob("*.distcp")]):
        if path.name not in known.files and path.name not in known.hashes:
            what = f"{path.name}: no digest, not checked"
            yield Finding("verify/unlisted", "warning", what, name=path.name)


def _report(known: Known, findings: tuple[Finding, ...]) -> Report:
    bad = errors(findings)
    files = [*known.files, *known.hashes]
    tensors = sum(len(file.tensors) for file in known.files.values())
    amount = f"{counted(len(files), 'file')}, {size_text(known.nbytes)}"
    against = [known.source] if known.source else []
    against += [f"the hub's hashes of {counted(len(known.hashes), 'file')}"] if known.hashes else []
    damaged = {finding.counterpart or finding.name for finding in bad}
    if not bad:
        reason = "every byte is as it was written" if known.files else "every byte is the hub's"
    elif len(bad) == 1:
        reason = bad[0].message
    else:
        tensors_hit = sum(finding.id == "verify/damaged" for finding in bad)
        reason = f"{counted(len(damaged), 'file')} damaged, with {counted(tensors_hit, 'tensor')}"
    again = ", ".join(sorted(damaged)[:3]) + (", …" if len(damaged) > 3 else "")
    return Report(
        "verify",
        known.folder.resolve().name,
        reason,
        findings,
        (Check("digests", "fail" if bad else "pass"),),
        (
            ("against", ", ".join(against)),
            ("read", f"{counted(tensors, 'tensor')}, {amount}" if tensors else amount),
        ),
        f"Fetch or convert again: {again}" if bad else "",
        status_counts(findings),
    )
