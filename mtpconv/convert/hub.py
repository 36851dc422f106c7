"""A checkpoint on the HuggingFace hub, known by its headers: no weight is downloaded.

Config, index and tokenizer files come through huggingface_hub into its own cache; of a shard only
the header's bytes are asked for, by HTTP range (https://www.rfc-editor.org/rfc/rfc9110#name-range).
Redirects to a content network and the token are huggingface_hub's business: its client drops the
token where a redirect leaves the host.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mtpconv.convert.headers import Header, header_from, require_countable
from mtpconv.convert.hf import INDEX, WEIGHTS, HfCheckpoint, checkpoint_of, list_sidecars
from mtpconv.convert.source import HubRef
from mtpconv.errors import FormatError

FIRST_READ = 64 << 10
"""Most headers fit in the first request: the length and the text after it in one answer."""
LARGEST_SIDECAR = 64 << 20
TRIES = 3
PATIENCE = 1.0
"""Seconds before the second try, twice as long before the third."""
_PARALLEL = 8
Result = TypeVar("Result")
_TEXTS = (".json", ".jinja", ".txt", ".model", ".tiktoken")


@dataclass(frozen=True, slots=True)
class _Repo:
    """A repository at one commit; `sizes` are its files with their bytes."""

    ref: HubRef
    commit: str
    sizes: dict[str, int]


def open_hub(ref: HubRef) -> HfCheckpoint:
    """Read config, index and every shard header of a repository.

    Raises FormatError (`hub/*`) where the hub does not give them, and what `open_hf` raises.
    """
    with _told(ref):
        repo = _look(ref)
        folder = _sidecars(repo)
        shards = [name for name in repo.sizes if name.endswith(".safetensors") and "/" not in name]
    known = checkpoint_of(
        folder, str(ref), sorted(shards), repo.sizes.__contains__, partial(_headers, repo)
    )
    kept, skipped = list_sidecars(folder)
    left = [
        f"{name} (not fetched from the hub)"
        for name in repo.sizes
        if name not in kept and name != INDEX and not name.endswith(".safetensors")
    ]
    return HfCheckpoint(
        folder, known.config, known.headers, known.index, kept,
        tuple(sorted({*skipped, *left})), known.findings,
    )  # fmt: skip


def _look(ref: HubRef) -> _Repo:
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

    info = _patient(
        lambda: HfApi().model_info(
            ref.repo, revision=ref.revision, files_metadata=True, timeout=HF_HUB_DOWNLOAD_TIMEOUT
        )
    )
    sizes = {file.rfilename: file.size for file in info.siblings or [] if file.size is not None}
    return _Repo(ref, info.sha or ref.revision or "main", sizes)


def _sidecars(repo: _Repo) -> Path:
    """Fetch what travels with the weights and is small; the folder it lies in."""
    import huggingface_hub.utils
    from huggingface_hub import snapshot_download

    utils: Any = huggingface_hub.utils  # documented there, but not in its __all__
    bars = utils.tqdm

    def hidden(bar: Any, *args: Any, **kwargs: Any) -> None:
        bars.__init__(bar, *args, **{**kwargs, "disable": True})

    # Small files need no progress bar, and stderr is for errors.
    silent = type("Silent", (bars,), {"__init__": hidden})
    wanted = [
        name
        for name, size in repo.sizes.items()
        if name.endswith(_TEXTS) and not name.endswith(WEIGHTS) and size <= LARGEST_SIDECAR
    ]
    if not wanted:
        what = f"{repo.ref}: holds no config.json"
        raise FormatError("hub/no-checkpoint", what, "name a repository of safetensors weights")
    # Patterns are globs; a name with a bracket in it must still mean itself.
    literal = [name.replace("[", "[[]") for name in wanted]
    folder = snapshot_download(
        repo.ref.repo, revision=repo.commit, allow_patterns=literal, tqdm_class=silent
    )
    return Path(folder)


def _headers(repo: _Repo, files: list[str]) -> dict[str, Header]:
    """The headers of several shards, several at a time."""
    with _told(repo.ref), ThreadPoolExecutor(_PARALLEL) as pool:
        found = require_countable(pool.map(partial(_header, repo), files), str(repo.ref))
        return dict(zip(files, found, strict=True))


def _header(repo: _Repo, file: str) -> Header:
    where, total = f"{repo.ref}: {file}", repo.sizes[file]
    first = _range(repo, file, 0, min(FIRST_READ, total))

    def read(offset: int, size: int) -> bytes:
        rest = offset + size - len(first)
        if rest <= 0:
            return first[offset : offset + size]
        return first[offset:] + _range(repo, file, len(first), rest)

    return header_from(read, total, where)


def _range(repo: _Repo, file: str, start: int, size: int) -> bytes:
    """`size` bytes of a file from `start`; what is cut short is asked for again."""
    return _patient(partial(_range_once, repo, file, start, size))


class _Cut(Exception):
    """An answer ended early."""


def _range_once(repo: _Repo, file: str, start: int, size: int) -> bytes:
    import huggingface_hub.utils
    from huggingface_hub import hf_hub_url
    from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

    url = hf_hub_url(repo.ref.repo, file, revision=repo.commit)
    utils: Any = huggingface_hub.utils  # documented there, but not in its __all__
    wanted = {"Range": f"bytes={start}-{start + size - 1}", "Accept-Encoding": "identity"}
    headers = {**utils.build_hf_headers(), **wanted}
    client = utils.get_session()
    timeout = HF_HUB_DOWNLOAD_TIMEOUT
    with client.stream(
        "GET", url, headers=headers, timeout=timeout, follow_redirects=True
    ) as answer:
        if answer.status_code >= 400:
            answer.read()
        utils.hf_raise_for_status(answer)
        if answer.status_code != 206:
            # The whole file would come, hundreds of GB of it: leave before reading any.
            what = f"{repo.ref}: {file}: the server sends the whole file where a part was asked for"
            raise FormatError("hub/no-range", what, f"download it: hf download {repo.ref.repo}")
        found = bytearray()
        for block in answer.iter_bytes():
            found += block
            if len(found) >= size:
                break
    if len(found) < size:
        raise _Cut(f"{file}: {len(found)} of {size} bytes came")
    return bytes(found[:size])


def _patient(ask: Callable[[], Result]) -> Result:
    """The answer, asked for again where the network or the server stumbled."""
    for attempt in range(TRIES - 1):
        try:
            return ask()
        except Exception as error:
            if not _may_pass(error):
                raise
            time.sleep(PATIENCE * 2**attempt)
    return ask()


def _may_pass(error: Exception) -> bool:
    """Whether the same question may be answered a moment later."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 429) or status >= 500
    return isinstance(error, _Cut) or _is_network(error)


def _is_network(error: Exception) -> bool:
    """Timeouts and broken connections: of the client that huggingface_hub uses, or the system's."""
    client = type(error).__module__.partition(".")[0].startswith(("httpx", "httpcore"))
    return client or isinstance(error, ConnectionError | TimeoutError)


@contextmanager
def _told(ref: HubRef) -> Iterator[None]:
    """Errors of the hub and the network as ours: what, where, how to mend it."""
    try:
        from huggingface_hub import errors
    except ImportError:
        raise FormatError(
            "hub/not-installed",
            f"{ref}: huggingface_hub is not installed",
            "pip install 'mtpconv[hub]', or name a folder",
        ) from None
    try:
        yield
    except errors.GatedRepoError as error:
        what = f"{ref}: the repository is gated"
        mend = "accept its terms on its page, then run `hf auth login`"
        raise FormatError("hub/gated", what, mend) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        what = f"{ref}: no such folder here, and no such repository on the hub for this token"
        mend = "check the name; a private repository needs `hf auth login`"
        raise FormatError("hub/not-found", what, mend) from error
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _unreachable(ref, error) from error
        what = f"{ref}: the repository has no such revision or file"
        raise FormatError("hub/not-found", what, "check the part after @") from error
    except errors.OfflineModeIsEnabled as error:
        raise _unreachable(ref, error) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            what = f"{ref}: the hub wants a valid token"
            raise FormatError("hub/gated", what, "run `hf auth login`") from error
        what = f"{ref}: the hub answers {status}"
        raise FormatError("hub/unreachable", what, "try again later") from error
    except _Cut as error:
        what = f"{ref}: answers end early ({error})"
        raise FormatError("hub/unreachable", what, "try again later") from error
    except Exception as error:
        if _is_network(error):
            raise _unreachable(ref, error) from error
        raise


def _unreachable(ref: HubRef, error: Exception) -> FormatError:
    what = f"{ref}: the hub cannot be reached ({type(error).__name__})"
    return FormatError("hub/unreachable", what, "check the network, or name a local folder")
