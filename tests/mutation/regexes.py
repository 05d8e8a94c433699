"""Small changes to a regular expression: what may stand in a class, how often, and which alternatives there are."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

_ESCAPE: Final = r"\\(?:x[0-9A-Fa-f]{2}|.)"
_TOKEN: Final = re.compile(
    rf"(?P<class>\[\^?\]?(?:{_ESCAPE}|[^\]\\])*\])"
    rf"|(?P<open>\(\?P<\w+>|\(\?[:=!]|\(\?<[=!]|\()"
    r"|(?P<close>\))"
    r"|(?P<bar>\|)"
    r"|(?P<quantifier>[*+?]|\{\d*,?\d*\}?|(?<=,)\d+\})"
    rf"|(?P<literal>{_ESCAPE}|.)",
    re.DOTALL,
)
_ITEM: Final = re.compile(rf"({_ESCAPE}|.)(?:-({_ESCAPE}|[^\]]))?", re.DOTALL)


def regexes(pattern: str, *, whole: bool) -> list[str]:
    """The patterns that differ from `pattern` in one place; when it is `whole` and no fragment, those that compile."""
    found = dict.fromkeys(_changes(pattern, whole=whole))
    found.pop(pattern, None)
    return [text for text in found if not whole or _compiles(text)]


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _changes(pattern: str, *, whole: bool) -> Iterator[str]:
    groups: list[list[int]] = [[0]]  # where the alternatives of each open group begin
    for token in _TOKEN.finditer(pattern):
        start, end = token.span()
        before, text, after = pattern[:start], token[0], pattern[end:]
        if token["class"]:
            yield from (before + other + after for other in _classes(text))
        elif token["quantifier"]:
            yield from (before + other + after for other in _quantifiers(text))
        elif token["open"]:
            groups.append([end])
        elif token["bar"]:
            groups[-1].append(end)
        elif token["close"] and len(groups) > 1:
            yield from _fewer_alternatives(pattern, [*groups.pop(), end])
    if whole:
        yield from _fewer_alternatives(pattern, [*groups[0], len(pattern) + 1])


def _fewer_alternatives(pattern: str, starts: list[int]) -> Iterator[str]:
    if len(starts) > 2:
        for index, (start, end) in enumerate(pairwise(starts)):
            first = index == 0
            yield pattern[: start if first else start - 1] + pattern[end if first else end - 1 :]


def _quantifiers(text: str) -> Iterator[str]:
    if text in "*+?":
        yield {"*": "+", "+": "*", "?": ""}[text]
        yield ""
        return
    for number in re.finditer(r"\d+", text):
        for other in (int(number[0]) + 1, int(number[0]) - 1):
            if other >= 0:
                yield text[: number.start()] + str(other) + text[number.end() :]


def _classes(text: str) -> Iterator[str]:
    hat = "^" if text.startswith("[^") else ""
    inner = text[1 + len(hat) : -1]
    items = [match[0] for match in _ITEM.finditer(inner)]
    yield f"[{'' if hat else '^'}{inner}]"
    for index, match in enumerate(_ITEM.finditer(inner)):
        left, right = "".join(items[:index]), "".join(items[index + 1 :])
        if len(items) > 1:
            yield f"[{hat}{left}{right}]"
        if match[2] is not None:
            low, high = _octet(match[1]), _octet(match[2])
            for one, other in ((low + 1, high), (low, high - 1)):
                yield f"[{hat}{left}\\x{one:02x}-\\x{other:02x}{right}]"


def _octet(text: str) -> int:
    if text.startswith(r"\x"):
        return int(f"0{text[1:]}", 0)
    return ord(text[-1])
