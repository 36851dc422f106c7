"""Render chat templates exactly as transformers does, with limits a template cannot pass."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mtpconv.chat.messages import Messages, normalize
from mtpconv.errors import MtpconvError

SECONDS = 5.0
"""For one rendering. The longest published template takes milliseconds."""
_PATIENCE = 2
"""Renderings of one call that may hang before the rest are given up."""
LIMIT = 32 << 20
"""Characters of one rendering."""
OLDEST_JINJA = (3, 1, 6)
"""Older sandboxes have known ways out; transformers refuses them as well."""


@dataclass(frozen=True, slots=True)
class Job:
    """One rendering to do."""

    messages: Messages
    add_generation_prompt: bool = False
    tools: Sequence[Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rendered:
    """One rendering: `text`, or why there is none.

    `kind` of a failure is `raised` (by the template itself), `error`, `syntax`, `unsafe` or
    `limit`. `blocks` are `{% generation %}` blocks as (start, end, in place), in characters.
    """

    text: str
    blocks: tuple[tuple[int, int, bool], ...] = ()
    kind: str = ""
    error: str = ""


class Renderer:
    """A template in its own process, started at the first rendering and again after a limit hit.

    `variables` are what every rendering sees (special tokens, the user's kwargs); a job's own come
    on top. Not for use from several threads.
    """

    def __init__(
        self,
        template: str,
        variables: Mapping[str, Any] | None = None,
        now: str | None = None,
        seconds: float = SECONDS,
        limit: int = LIMIT,
    ) -> None:
        self.template = template
        self.variables = dict(variables or {})
        self.now = now
        self._seconds = seconds
        self._limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def render(self, jobs: Sequence[Job]) -> list[Rendered]:
        """All of `jobs`, in order. One that hangs is stopped by itself, the others still run.

        After two that hang the rest of this call are not tried.
        """
        done: list[Rendered] = []
        failures: list[Rendered] = []
        while len(done) < len(jobs):
            if len(failures) == _PATIENCE:
                done.append(failures[-1])
                continue
            rest = jobs[len(done) :]
            self._send([self._request(job) for job in rest])
            for _ in rest:
                answer = self._answer()
                done.append(_rendered(answer))
                if answer.get("kind") == "limit" and self._process is None:
                    failures.append(done[-1])
                    break
        return done

    def one(self, job: Job) -> Rendered:
        """A single rendering."""
        return self.render([job])[0]

    def names(self) -> list[str]:
        """Variables the template reads and does not set: what kwargs can reach."""
        self._send("names")
        names: list[str] = self._answer().get("names", [])
        return names

    def close(self) -> None:
        """End the process."""
        if self._process is None:
            return
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()
        self._process = None
        self._rest = b""

    def _request(self, job: Job) -> dict[str, Any]:
        return {
            "messages": normalize(job.messages),
            "add_generation_prompt": job.add_generation_prompt,
            "tools": job.tools,
            "variables": {**self.variables, **job.variables},
        }

    def _send(self, request: Any) -> None:
        process = self._process or self._start()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what it died of shows where it is read
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        """The next answer of the worker; it is ended if none comes in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe, until = self._process.stdout.fileno(), time.monotonic() + self._seconds
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            left = until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                self.close()
                return {"kind": "limit", "error": f"it takes more than {self._seconds:g} s"}
            part = os.read(pipe, 1 << 20)
            if not part:
                self.close()
                return {"kind": "limit", "error": "it ended the process that renders it"}
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        require_jinja()
        worker = str(Path(__file__).with_name("worker.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-I", worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        setup = {
            "template": self.template,
            "now": self.now,
            "limit": self._limit,
            "seconds": self._seconds,
        }
        self._process.stdin.write(json.dumps(setup).encode() + b"\n")
        return self._process


def _rendered(answer: dict[str, Any]) -> Rendered:
    if "kind" in answer:
        return Rendered("", kind=answer["kind"], error=answer["error"])
    blocks = tuple((start, end, whole) for start, end, whole in answer["blocks"])
    return Rendered(answer["text"], blocks)


def require_jinja() -> None:
    """Raise MtpconvError if jinja2 is missing or its sandbox too old."""
    mend = "pip install 'mtpconv[chat]'"
    try:
        version = metadata.version("jinja2")
    except metadata.PackageNotFoundError:
        raise MtpconvError("chat/no-jinja2", "rendering needs jinja2", mend) from None
    digits = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if digits < OLDEST_JINJA:
        what = f"jinja2 {version}: its sandbox has known ways out; 3.1.6 has not"
        raise MtpconvError("chat/old-jinja2", what, "pip install -U jinja2")
