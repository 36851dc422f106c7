"""The process that runs an untrusted chat template: Jinja's sandbox, and limits outside it.

Started by its path with `python -I`, so it imports nothing of this package. It reads one JSON
request a line from stdin, a list of renderings, and writes a line to stdout for each of them. The
environment is the one transformers renders with (`render_jinja_template`, 5.x): blocks trimmed,
loop controls, its `tojson`, `strftime_now`, `raise_exception`, and `{% generation %}` blocks
tracked as it does.
"""

import json
import resource
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, UndefinedError
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MEMORY = 1 << 30
"""Bytes of address space: a template that multiplies strings fails here, not in the machine."""


class TooLong(Exception):
    """The text outgrew the limit."""


class Blocks:
    """`{% generation %}` blocks of one rendering: where each is said to be, and what it wrote."""

    def __init__(self) -> None:
        self.length = 0
        self.found: list[tuple[int, str]] = []


class Generation(Extension):
    """The `{% generation %}` tag.

    A block's start is the length of the text put out before it, as in transformers: inside a macro
    or a filter that is not where its text ends up.
    """

    tags = {"generation"}  # noqa: RUF012  (Jinja's own type)
    blocks = Blocks()

    def parse(self, parser: Parser) -> Node | list[Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        text = caller()
        Generation.blocks.found.append((Generation.blocks.length, text))
        return text


class PlainNamespace(Namespace):
    """transformers lets no underscore name into a namespace."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        names = dict(*args[1:], **kwargs)
        for name in names:
            PlainNamespace.check(name)
        Namespace.__init__(args[0], names)

    def __setitem__(self, name: str, value: Any) -> None:
        PlainNamespace.check(name)
        Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace may not hold {name!r}")


def raise_exception(message: str) -> str:
    raise TemplateError(message)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def environment(now: str | None) -> ImmutableSandboxedEnvironment:
    """The environment templates run in; `now` (ISO) stops the clock they see."""

    def strftime_now(pattern: str) -> str:
        moment = datetime.fromisoformat(now) if now else datetime.now()  # noqa: DTZ005  (as they do)
        return moment.strftime(pattern)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, "jinja2.ext.loopcontrols"],
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = strftime_now
    made.globals["namespace"] = PlainNamespace
    return made


def render(template: Any, job: dict[str, Any], limit: int) -> dict[str, Any]:
    """One rendering: its text and generation blocks, or why there is none."""
    blocks = Generation.blocks = Blocks()
    parts: list[str] = []
    try:
        for part in template.generate(
            messages=job["messages"],
            tools=job["tools"],
            documents=None,
            add_generation_prompt=job["add_generation_prompt"],
            **job["variables"],
        ):
            blocks.length += len(part)
            if blocks.length > limit:
                raise TooLong
            parts.append(part)
    except Exception as error:
        return failure(error, limit)
    text = "".join(parts)
    spans = [[at, at + len(b), text[at : at + len(b)] == b] for at, b in blocks.found]
    return {"text": text, "blocks": spans}


def names(template: str) -> list[str]:
    """Variables the template reads and does not set itself."""
    return sorted(find_undeclared_variables(environment(None).parse(template)))


def failure(error: Exception, limit: int) -> dict[str, Any]:
    """The answer for a rendering that ended early: its kind, and a line for people."""
    if isinstance(error, TooLong):
        return {"kind": "limit", "error": f"it writes more than {limit:,} characters"}
    if isinstance(error, MemoryError):
        return {"kind": "limit", "error": f"it takes more than {MEMORY >> 20} MiB of memory"}
    if isinstance(error, RecursionError):
        return {"kind": "limit", "error": "it nests too deep"}
    if isinstance(error, SecurityError):
        return {"kind": "unsafe", "error": str(error)}
    if isinstance(error, TemplateSyntaxError):
        return {"kind": "syntax", "error": f"line {error.lineno}: {error.message}"}
    if isinstance(error, UndefinedError) or not isinstance(error, TemplateError):
        return {"kind": "error", "error": f"{type(error).__name__}: {error}"}
    return {"kind": "raised", "error": str(error)}


def main() -> None:
    """Answer requests until stdin ends. The first line holds template, clock and limits."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    setup = json.loads(sys.stdin.readline())
    try:
        template = environment(setup["now"]).from_string(setup["template"])
        broken = None
    except Exception as error:
        template, broken = None, failure(error, setup["limit"])
    for line in sys.stdin:
        jobs = json.loads(line)
        if jobs == "names":
            say({"names": [] if broken else names(setup["template"])})
            continue
        for job in jobs:
            limit_time(setup["seconds"])
            say(broken or render(template, job, setup["limit"]))


def say(answer: dict[str, Any]) -> None:
    """Write one answer."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def limit_time(seconds: float) -> None:
    """The kernel ends a rendering that outlives a parent which cannot end it any more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the parent has it too, and says so
        sys.exit(130)
