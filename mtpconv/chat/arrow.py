"""Masks as an Arrow file (IPC), for those who read tables; needs pyarrow."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from mtpconv.errors import MtpconvError

_ROWS = 1024


def require_arrow() -> Any:
    """The pyarrow module. Raises MtpconvError if it is not installed."""
    try:
        import pyarrow as pa
    except ImportError:
        mend = "pip install 'mtpconv[arrow]', or name the output .jsonl"
        raise MtpconvError("chat/no-pyarrow", "an .arrow output needs pyarrow", mend) from None
    return pa


def write_arrow(samples: Path, out: Path) -> None:
    """Columns row, turn (0: the whole conversation), input_ids and loss_mask, from JSONL."""
    arrow = require_arrow()
    schema = arrow.schema(
        [
            ("row", arrow.int64()),
            ("turn", arrow.int32()),
            ("input_ids", arrow.list_(arrow.int32())),
            ("loss_mask", arrow.list_(arrow.int8())),
        ]
    )
    with (
        samples.open("rb") as file,
        arrow.OSFile(str(out), "wb") as sink,
        arrow.ipc.new_file(sink, schema) as writer,
    ):
        while lines := list(islice(file, _ROWS)):
            rows = [{"turn": 0, **json.loads(line)} for line in lines]
            writer.write_batch(arrow.RecordBatch.from_pylist(rows, schema=schema))
