"""The digests of a folder's data files as JSON: schema `mtpconv.digests/1`.

    {"schema": "mtpconv.digests/1", "algorithm": "xxh3-128", "block_bytes": 67108864,
     "files": {"model.safetensors": {"size": 123, "frame": "…", "tensors": {"a": [8, 100, "…"]}}}}

A tensor's row is where its bytes begin in the file, how many there are, and their digest; `frame`
is the digest of all bytes that belong to no tensor, in order (headers, containers, whole small
files). So every byte of a listed file is covered, and is checked without parsing the file.
`digests` defines the digest. In an HF folder the JSON is the file `mtpconv.digests.json`, in a
Megatron iteration the entry `digests` of `mtpconv.json`.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mtpconv.convert.digests import ALGORITHM, BLOCK, Digest
from mtpconv.convert.written import Range, Written, require_sound
from mtpconv.errors import FormatError, UnsafeError, brief
from mtpconv.inventory.files import is_plain_name, read_small, require_inside, require_name
from mtpconv.inventory.strict_json import MOST_BYTES, parse_json

SCHEMA = "mtpconv.digests/1"


def digests_body(files: Iterable[Written]) -> dict[str, Any]:
    """The JSON object of the files' digests."""
    return {
        "schema": SCHEMA,
        "algorithm": ALGORITHM,
        "block_bytes": BLOCK,
        "files": {
            file.name: {
                "size": file.size,
                "frame": file.frame,
                "tensors": {
                    name: [at.start, at.nbytes, at.digest] for name, at in file.tensors.items()
                },
            }
            for file in files
        },
    }


def digests_text(files: Iterable[Written]) -> bytes:
    """The file that lies beside an HF folder's shards."""
    return (json.dumps(digests_body(files), ensure_ascii=False, indent=1) + "\n").encode()


def small_file(name: str, data: bytes) -> Written:
    """A file that holds no tensors, as `data` is about to be written."""
    frame = Digest()
    frame.update(data)
    return Written(name, len(data), {}, frame.hex())


def read_digests(path: Path) -> dict[str, Written] | None:
    """The digests of an HF folder from the file at `path`; None where there is none.

    Raises FormatError for one that is damaged or of a newer schema, UnsafeError for one that names
    files outside the folder.
    """
    try:
        body = parse_json(read_small(require_inside(path, path.parent), MOST_BYTES))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _corrupt(path, error) from error
    return parse_digests(body, path)


def parse_digests(body: Any, path: Path) -> dict[str, Written]:
    """The files of a JSON object that came from `path`. Raises as `read_digests` does."""
    try:
        stated = (body["schema"], body["algorithm"], body["block_bytes"])
        if stated != (SCHEMA, ALGORITHM, BLOCK):
            what = (
                f"{path}: digests {brief(stated)}; this mtpconv reads {(SCHEMA, ALGORITHM, BLOCK)}"
            )
            raise FormatError("verify/schema", what, "use the mtpconv that wrote them")
        files = {name: _file(name, entry) for name, entry in body["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _corrupt(path, error) from error
    for name in files:
        if not is_plain_name(name):
            what = f"{path}: names {brief(name)}, no file of the folder"
            raise UnsafeError("sec/path", what, "do not use these digests")
        require_name(name, path)
    return files


def _corrupt(path: Path, error: Exception) -> FormatError:
    what = f"{path}: its digests cannot be read ({brief(error)})"
    return FormatError("verify/corrupt", what, "convert again, or fetch the file again")


def _file(name: str, entry: Mapping[str, Any]) -> Written:
    tensors = {
        tensor: Range(start, nbytes, digest)
        for tensor, (start, nbytes, digest) in entry["tensors"].items()
    }
    file = Written(name, entry["size"], tensors, entry["frame"])
    require_sound(file)
    return file
