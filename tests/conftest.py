"""What holds for every test: the TransformerEngine stand-in, and a cache of its own."""

from pathlib import Path

import pytest

from mtpconv.parity import te

te.install()  # before anything imports megatron, or no TE layer is built


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests that `diff` remembers: neither the user's nor another test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
