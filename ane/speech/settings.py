"""Declare the fields of settings and requests with their ranges and help texts, and derive command options from them.

Settings say how the networks of one kind of model work. A request has a text and fields that every model takes.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from pydantic import Field

from ane.system.checked import validated
from ane.system.errors import NoEffectError, UserError


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
    """Declare a field of settings or requests that is also an option of commands.

    Args:
        default: Default value of the field.
        help: Help text of the option.
        metavar: Placeholder for the value in the help.
        option: Name of the option. "" means the name of the field.
        group: Title of the option's group in the help.
        needs: Attribute of a model that must be true for the field to have an effect.
        api: Help text in the server's schema. "" means that clients cannot send the field.
        limits: Range of the value: ge, gt, le, lt.
    """
    return Field(
        default,
        description=help,
        **limits,
        json_schema_extra={"metavar": metavar, "option": option, "group": group, "needs": needs, "api": api},
    )


def split_setting(desired: int, most: int) -> Any:
    """Declare the field ``split``, which has the desired and the maximum number of characters in a chunk."""
    return setting(
        (desired, most), "split into chunks of about D and at most M characters", metavar="D,M", group="text"
    )


@dataclass(frozen=True)
class Option:
    """An option of commands, and the field of settings or requests that it sets.

    Attributes:
        name: Name of the option.
        field: Name of the field.
        within: Name of the field that holds the nested settings to which ``field`` belongs, or "" if they are not
            nested.
        help: Help text.
        metavar: Placeholder for the value in the help.
        group: Title of the option's group in the help.
        type: Type of the value.
        choices: Values that the option accepts. () means that it accepts any value of ``type``.
        default: Default value as the help shows it.
        optional: Whether the value may be ``None``.
        needs: Attribute of a model that must be true for the option to have an effect.
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
    """Base class for the settings of every kind of model.

    Some subclasses have the field ``split``: the desired and the maximum number of characters in a chunk. A chunk that
    is too long for one pass of the network is split further. If ``split`` is ``None``, the text is one chunk, and a
    text that is too long for one pass is an error.

    Raises:
        UserError: A value is out of range.
    """

    presets: ClassVar[Sequence[str]] = ()  # names of the presets that this kind of model has

    def __post_init__(self) -> None:
        split = getattr(self, "split", None)
        if split is not None and not 1 <= split[0] <= split[1]:
            raise UserError(
                "split must be D,M with 1 ≤ D ≤ M, where a chunk has about D characters and at most M, "
                f"got {split[0]},{split[1]}",
                "split",
            )

    @classmethod
    def of(cls, preset: str | None = None, model: Mapping[str, Any] | None = None, **changes: Any) -> Self:
        """Create settings from a preset, the settings that a model stores, and changes to both.

        Args:
            preset: Name of a preset. ``None`` means the model's default preset.
            model: Settings in the model's bundle.json.
            changes: Values of fields. They replace the values from ``preset`` and ``model``.

        Raises:
            UserError: A value is out of range, or ``preset`` is given and this kind of model has no presets.
        """
        if preset is not None:
            raise NoEffectError("preset", "because this kind of model has no presets", "leave it out")
        return cls(**changes)

    @classmethod
    @cache
    def options(cls) -> Mapping[str, Option]:
        """Return the options for these settings, by name. Only the first call for a class collects them."""
        return {option.name: option for option in options_of(cls)}

    def changed(self, options: Mapping[str, Any]) -> Self:
        """Return a copy of the settings with the values of some options.

        Args:
            options: Values by option name. If "no_split" is true, the text becomes one chunk.

        Raises:
            UserError: A value is out of range, or an option has no effect.
        """
        values, known = dict(options), self.options()
        changes: dict[str, Any] = {}
        if values.pop("no_split", False):
            if "split" in values:
                reason = "because no_split makes the text one chunk"
                raise NoEffectError("split", reason, "leave one out", ("no_split",))
            changes["split"] = None
        inner: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            option = known[name]
            target = inner.setdefault(option.within, {}) if option.within else changes
            target[option.field] = value
        for within, inner_changes in inner.items():
            current = getattr(self, within)
            if current is None:
                name = next(name for name in values if known[name].within == within)
                reason = f"because these settings have no {within}"
                raise NoEffectError(name, reason, "choose another preset, or leave it out", ("preset",))
            try:
                changes[within] = dataclasses.replace(current, **inner_changes)
            except UserError as error:
                raise as_option(error, known, within) from None
        return dataclasses.replace(self, **changes)


def as_option(error: UserError, options: Mapping[str, Option], within: str) -> UserError:
    """Return an error about nested settings that names the option instead of the field."""
    field = error.parameter
    name = next((one.name for one in options.values() if (one.within, one.field) == (within, field)), field)
    if name == field:
        return error
    message = name + str(error).removeprefix(field)
    if isinstance(error, NoEffectError):
        return NoEffectError(name, error.reason, partners=error.partners, text=message)
    return UserError(message, name)


def options_of(settings: type, within: str = "") -> Iterator[Option]:
    """Yield the options of a class of settings or requests, including the options of its nested settings."""
    hints = get_type_hints(settings)
    for name, field in settings.__pydantic_fields__.items():  # type: ignore[attr-defined]
        kinds = [kind for kind in (get_args(hints[name]) or (hints[name],)) if kind is not type(None)]
        if (declared := field.json_schema_extra) is None:
            if dataclasses.is_dataclass(kinds[0]):
                yield from options_of(kinds[0], name)
            continue
        literal, kind = get_origin(hints[name]) is Literal, get_origin(kinds[0]) or kinds[0]
        yield Option(
            declared["option"] or name,
            name,
            within,
            field.description,
            declared["metavar"],
            declared["group"],
            kind if kind in (bool, int, float, tuple) else str,
            get_args(hints[name]) if literal else (),
            shown_default(field.default),
            type(None) in get_args(hints[name]),
            declared["needs"],
        )


def shown_default(value: Any) -> str:
    """Format a default value as on the command line. Return "" for a default that the help should not show."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value in (None, False) else f"{value:g}" if isinstance(value, float) else str(value)
