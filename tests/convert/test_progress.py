"""What is shown on a terminal while bytes are read and written."""

import io
import re
import sys
import time

import pytest

from mtpconv.convert.rich_progress import shown


class Terminal(io.StringIO):
    """A stderr that somebody looks at."""

    def isatty(self) -> bool:
        return True


def work() -> None:
    with shown() as progress:
        advance = progress("writing", 64 << 20)
        for _ in range(4):
            time.sleep(0.002)  # a rate takes two moments
            advance(16 << 20)


def test_sizes_and_rates_have_the_units_of_the_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    work()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "64.0/64.0 MiB" in text
    assert re.search(r" [0-9.,]+ [KMGT]iB/s ", text), text
    assert not re.search(r"[kMGT]B\b", text), text


def test_nothing_is_shown_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    work()
    assert file.getvalue() == ""
