"""The declaration of a setting of `serve`, and of a table of settings."""

from typing import Any, Final

from attrs import frozen

REQUIRED: Final = object()  # the default of a setting that must be given


@frozen
class Setting:
    """One setting.

    `default` is its value when it is left out. `REQUIRED` means that a missing setting is an error. `None` means
    that `otherwise` describes the default. `bounds` are its least and greatest value. A value outside `usual` gets a
    warning that gives the reason in `unusual`. `written` is its value in the configuration of `init`, as TOML with
    placeholders in braces. Without `written`, `init` writes the default. `init` writes an optional setting as a
    comment.
    """

    name: str
    type: type
    meaning: str
    default: Any = REQUIRED
    otherwise: str = ""
    bounds: tuple[int, int] | None = None
    usual: tuple[int, int] | None = None
    unusual: str = ""
    written: str | None = None
    is_active: bool = False  # whether `init` sets it although it is optional
    example: str = ""  # for an array of tables with at least one table: how to write it

    @property
    def values(self) -> str:
        """Return the allowed and the usual values as text."""
        parts = [f"from {self.bounds[0]} to {self.bounds[1]}"] if self.bounds else []
        parts += [f"usually {self.usual[0]} to {self.usual[1]}"] if self.usual else []
        return ", ".join(parts)

    @property
    def usually(self) -> str:
        """Return the usual values with the reason, or `""` if every value is usual."""
        return f"usually it is {self.usual[0]} to {self.usual[1]}, because {self.unusual}" if self.usual else ""

    @property
    def line(self) -> str:
        """Return the line of `init` for this setting."""
        line = f"{self.name} = {self.written if self.written is not None else toml(self.default)}"
        return line if self.default is REQUIRED or self.is_active else f"# {line}"


@frozen
class TableOf:
    """One TOML table of settings. `header` is its name with brackets, and `least` is the required number of tables."""

    name: str
    header: str
    meaning: str
    settings: tuple[Setting, ...]
    least: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the settings."""
        return tuple(setting.name for setting in self.settings)


def toml(value: object) -> str:
    """Return a setting's default as TOML.

    >>> toml(True), toml("a"), toml([])
    ('true', '"a"', '[]')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
