"""Fields that are declared once, with ranges and help: those of a model's settings, and of a request. The options of
commands are made of them.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from pydantic import Field

from ane.system.checked import validated
from ane.system.errors import UserError


def setting(
    default: Any,
    help: str,
    *,
    metavar: str = "",
    option: str = "",
    group: str = "",
    needs: str = "",
    api: str = "",
    **limits: Any,
) -> Any:
    """Declare a field that is also an option, by its own name or by ``option``.

    Args:
        group: Title of the options' group in the help.
        needs: The attribute of a model without which the field has no effect on it.
        api: The help in the server's schema, for a field that clients may send.
        limits: The range: ge, gt, le, lt.
    """
    return Field(
        default,
        description=help,
        **limits,
        json_schema_extra={"metavar": metavar, "option": option, "group": group, "needs": needs, "api": api},
    )


def split_setting(desired: int, most: int) -> Any:
    """The field ``split``: characters of a chunk."""
    return setting((desired, most), "chunks of about D and at most M characters", metavar="D,M", group="text")


@dataclass(frozen=True)
class Option:
    """An option: the field (or the field of settings within) that it sets, its help, its type and whether it may be
    None, and the attribute of a model that it needs.
    """

    name: str
    field: str
    within: str
    help: str
    metavar: str
    group: str
    type: type
    choices: tuple[str, ...]
    default: Any
    optional: bool
    needs: str


@validated
class SpeechSettings:
    """What the settings of all models have in common.

    Some have ``speed``, 1 as trained and 2 twice as fast, and ``split``, the desired and the maximum characters of a
    chunk (None: the text is one chunk). A chunk of more than one pass takes is split further, or with None an error.

    Raises:
        UserError: a value is out of range.
    """

    presets: ClassVar[Sequence[str]] = ()  # names of settings that may be chosen by them

    def __post_init__(self) -> None:
        split = getattr(self, "split", None)
        if split is not None and not 1 <= split[0] <= split[1]:
            raise UserError(
                "split must be the desired number of characters in a chunk, then the maximum, which is no "
                f"smaller; got {split[0]},{split[1]}",
                "split",
            )

    @classmethod
    def of(cls, preset: str | None = None, model: Mapping[str, Any] | None = None, **changes: Any) -> Self:
        """Settings with these changes. ``model``: the settings in a model's bundle.json. Raises UserError: a value is
        out of range, or this kind of model has no presets.
        """
        if preset is not None:
            raise UserError("preset has no effect: this kind of model has none", "preset")
        return cls(**changes)

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The options, by name."""
        return {option.name: option for option in options_of(cls)}

    def changed(self, options: Mapping[str, Any]) -> Self:
        """These settings with the values of options; "no_split" makes one chunk of the text. Raises UserError: a value
        out of range, or an option without effect.
        """
        values, known = dict(options), self.options()
        changes: dict[str, Any] = {}
        if values.pop("no_split", False):
            if "split" in values:
                raise UserError("split has no effect: no_split makes one chunk of the text; leave one out", "split")
            changes["split"] = None
        inner: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            option = known[name]
            target = inner.setdefault(option.within, {}) if option.within else changes
            target[option.field] = value
        for within, found in inner.items():
            current = getattr(self, within)
            if current is None:
                name = next(name for name in values if known[name].within == within)
                raise UserError(
                    f"{name} has no effect: there is no {within} with these settings; choose another "
                    "preset, or leave it out",
                    name,
                )
            try:
                changes[within] = dataclasses.replace(current, **found)
            except UserError as error:
                raise as_option(error, known, within) from None
        return dataclasses.replace(self, **changes)


def as_option(error: UserError, options: Mapping[str, Option], within: str) -> UserError:
    """The error of a field of inner settings, with the name of its option."""
    field = error.parameter
    name = next((one.name for one in options.values() if (one.within, one.field) == (within, field)), field)
    return UserError(name + str(error).removeprefix(field), name)


def options_of(settings: type, within: str = "") -> Iterator[Option]:
    """Yield the options of a class of settings or of a request, including settings within it."""
    hints = get_type_hints(settings)
    for name, field in settings.__pydantic_fields__.items():  # type: ignore[attr-defined]
        kinds = [kind for kind in (get_args(hints[name]) or (hints[name],)) if kind is not type(None)]
        if (stated := field.json_schema_extra) is None:
            if dataclasses.is_dataclass(kinds[0]):
                yield from options_of(kinds[0], name)
            continue
        literal, kind = get_origin(hints[name]) is Literal, get_origin(kinds[0]) or kinds[0]
        yield Option(
            stated["option"] or name,
            name,
            within,
            field.description,
            stated["metavar"],
            stated["group"],
            kind if kind in (bool, int, float, tuple) else str,
            get_args(hints[name]) if literal else (),
            shown_default(field.default),
            type(None) in get_args(hints[name]),
            stated["needs"],
        )


def shown_default(value: Any) -> str:
    """A default as it is written on the command line; "" for one that help should not state."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value in (None, False) else f"{value:g}" if isinstance(value, float) else str(value)
