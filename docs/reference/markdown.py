"""Markdown of the generated parts."""

from collections.abc import Iterable, Sequence


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table. A bar in a cell is escaped."""
    lines = [titles, ["---"] * len(titles), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    head, rule, *others = [f"| {' | '.join(line)} |" for line in cells]
    return "\n".join([head, rule.replace(" ", ""), *others])


def sentence(text: str) -> str:
    """Return `text` with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
