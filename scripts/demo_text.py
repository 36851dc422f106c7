"""Text for the demo checkpoint: short documents that a seeded generator makes up.

Five kinds of task (JSON records, arithmetic, counting, code, translation) appear as plain
documents and as chat turns. Most of each document follows from what stands before it, so a model
of about a million weights learns it in minutes and has something definite to predict.
"""

import random
import zlib
from collections.abc import Callable, Iterator
from itertools import islice

from jinja2 import Template

CHAT_TEMPLATE = """\
{{- '[gMASK]<sop>' -}}
{%- for message in messages -%}
    {%- if message.role not in ['system', 'user', 'assistant'] -%}
        {{- raise_exception('Unknown role: ' + message.role) -}}
    {%- endif -%}
    {{- '<|' + message.role + '|>\\n' + message.content -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant|>\\n' -}}
{%- endif -%}
"""
PREFIX = "[gMASK]<sop>"
END = "<|endoftext|>"
# One document in this many is kept out of training, chosen by its own bytes (`is_held_out`).
HELD_OUT_ONE_IN = 10

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "Answer with the result only.",
    "You fill in records and answer short questions.",
)
GIVEN_NAMES = ("Ana", "Ben", "Chloe", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas")
FAMILY_NAMES = ("Ruiz", "Smith", "Martin", "Weber", "Rossi", "Khan", "Lopez", "Berg", "Silva")
COUNTRY_OF = {
    "Lima": "Peru",
    "Leeds": "England",
    "Lyon": "France",
    "Berlin": "Germany",
    "Rome": "Italy",
    "Lahore": "Pakistan",
    "Madrid": "Spain",
    "Oslo": "Norway",
    "Porto": "Portugal",
    "Kyoto": "Japan",
}
OPERATIONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("+", lambda a, b: a + b),
    "sub": ("-", lambda a, b: a - b),
    "mul": ("*", lambda a, b: a * b),
}
PHRASES: tuple[dict[str, str], ...] = (
    {
        "English": "Good morning",
        "French": "Bonjour",
        "German": "Guten Morgen",
        "Spanish": "Buenos días",
        "Russian": "Доброе утро",
        "Chinese": "早上好",
        "Japanese": "おはようございます",
    },
    {
        "English": "Thank you",
        "French": "Merci",
        "German": "Danke schön",
        "Spanish": "Gracias",
        "Russian": "Спасибо",
        "Chinese": "谢谢",
        "Japanese": "ありがとう",
    },
    {
        "English": "Good night",
        "French": "Bonne nuit",
        "German": "Gute Nacht",
        "Spanish": "Buenas noches",
        "Russian": "Спокойной ночи",
        "Chinese": "晚安",
        "Japanese": "おやすみなさい",
    },
    {
        "English": "See you tomorrow",
        "French": "À demain",
        "German": "Bis morgen",
        "Spanish": "Hasta mañana",
        "Russian": "До завтра",
        "Chinese": "明天见",
        "Japanese": "また明日",
    },
    {
        "English": "Where is the station?",
        "French": "Où est la gare ?",
        "German": "Wo ist der Bahnhof?",
        "Spanish": "¿Dónde está la estación?",
        "Russian": "Где вокзал?",
        "Chinese": "车站在哪里？",
        "Japanese": "駅はどこですか？",
    },
    {
        "English": "I am learning",
        "French": "J'apprends",
        "German": "Ich lerne",
        "Spanish": "Estoy aprendiendo",
        "Russian": "Я учусь",
        "Chinese": "我在学习",
        "Japanese": "勉強しています",
    },
)

Message = dict[str, str]
Task = tuple[str, str]


def record_task(rng: random.Random) -> Task:
    """A person in one sentence, and the same person as a JSON record."""
    given, family = rng.choice(GIVEN_NAMES), rng.choice(FAMILY_NAMES)
    city, age = rng.choice(sorted(COUNTRY_OF)), rng.randint(18, 79)
    question = f"Make a record for {given} {family}, aged {age}, living in {city}."
    answer = (
        f'{{"name": "{given} {family}", "age": {age}, "city": "{city}", '
        f'"country": "{COUNTRY_OF[city]}", '
        f'"email": "{given.lower()}.{family.lower()}@example.org"}}'
    )
    return question, answer


def arithmetic_task(rng: random.Random) -> Task:
    """A sum, difference or product of small numbers."""
    symbol, compute = OPERATIONS[rng.choice(sorted(OPERATIONS))]
    b = rng.randint(1, 9)
    a = rng.randint(1, 9) if symbol == "*" else rng.randint(b, 29)
    return f"What is {a} {symbol} {b}?", f"{a} {symbol} {b} = {compute(a, b)}"


def counting_task(rng: random.Random) -> Task:
    """An arithmetic progression with a fixed step."""
    start, step = rng.randint(0, 19), rng.randint(1, 5)
    numbers = ", ".join(str(start + step * i) for i in range(8))
    return f"Count from {start} in steps of {step}.", numbers


def code_task(rng: random.Random) -> Task:
    """A one-line Python function with an assertion that holds."""
    name = rng.choice(sorted(OPERATIONS))
    symbol, compute = OPERATIONS[name]
    b = rng.randint(2, 9)
    x = rng.randint(b, 9)
    answer = (
        f"def {name}_{b}(x: int) -> int:\n"
        f"    return x {symbol} {b}\n\n\n"
        f"assert {name}_{b}({x}) == {compute(x, b)}"
    )
    return f"Write a Python function that returns x {symbol} {b}.", answer


def translation_task(rng: random.Random) -> Task:
    """An English phrase and its translation."""
    phrase = rng.choice(PHRASES)
    language = rng.choice(sorted(phrase.keys() - {"English"}))
    question = f"Say '{phrase['English']}' in {language}."
    return question, phrase[language]


TASKS = (record_task, arithmetic_task, counting_task, code_task, translation_task)


def chat_document(rng: random.Random, template: Template) -> str:
    """One to three tasks as user and assistant turns, as the shipped chat template renders them."""
    messages: list[Message] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    for _ in range(rng.randint(1, 3)):
        question, answer = rng.choice(TASKS)(rng)
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return template.render(messages=messages, add_generation_prompt=False) + END


def plain_document(rng: random.Random) -> str:
    """Three answers of one kind of task, one below the other, without questions."""
    task = rng.choice(TASKS)
    return PREFIX + "\n".join(task(rng)[1] for _ in range(3)) + END


def is_held_out(document: str) -> bool:
    """Whether a document is for evaluation only.

    The document's own bytes decide, not the seed: the generator may well make the same document
    twice, and a copy of it must never be on both sides.
    """
    return zlib.crc32(document.encode()) % HELD_OUT_ONE_IN == 0


def documents(seed: int, *, held_out: bool) -> Iterator[str]:
    """An endless stream of documents of one side of the split; three in four are chats."""
    rng = random.Random(seed)
    template = Template(CHAT_TEMPLATE)
    while True:
        chat = rng.random() < 0.75
        document = chat_document(rng, template) if chat else plain_document(rng)
        if is_held_out(document) == held_out:
            yield document


def take_documents(seed: int, count: int, *, held_out: bool) -> list[str]:
    """The first `count` documents of one side of the split."""
    return list(islice(documents(seed, held_out=held_out), count))
