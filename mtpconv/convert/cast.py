"""Changing a block's dtype through torch, only where every value survives."""

from mtpconv.errors import FormatError, Narrowed

TORCH_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def convert(block: memoryview, dtypes: tuple[str, str], name: str) -> memoryview:
    """`block`, elements of `dtypes[0]`, as elements of `dtypes[1]`.

    Raises Narrowed, with the count, if a value would not come back the same (NaNs must keep their
    place but not their payload), FormatError for a dtype that is no float.
    """
    import torch

    if not set(dtypes) <= TORCH_FLOATS.keys():
        raise FormatError(
            "dtype/unsupported", f"{name}: cannot be turned from {dtypes[0]} into {dtypes[1]}"
        )
    source, target = (getattr(torch, TORCH_FLOATS[dtype]) for dtype in dtypes)
    values = torch.frombuffer(block, dtype=source)
    converted = values.to(target)
    back = converted.to(source)
    lost = int(((back != values) & ~(back.isnan() & values.isnan())).sum())
    if lost:
        distinct = len(set(values.tolist())), len(set(converted.tolist()))
        raise Narrowed(
            "dtype/narrowed",
            f"{name}: {lost} of {values.numel()} values do not survive {dtypes[0]} -> {dtypes[1]}"
            f" ({distinct[0]} distinct values become {distinct[1]})",
            f"keep it in {dtypes[0]}: give a --like whose header says so",
        )
    return converted.contiguous().view(torch.uint8).numpy().data
