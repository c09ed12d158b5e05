"""Settings that fit every model: the options of `ane say`, each with the model's own value unless it is given."""

from typing import Any, Literal

from ane.system.checked import validated


@validated
class SpeechOptions:
    """Options of `ane say` for ``Speaker.speak``, as ``ane.Settings``. ``None`` leaves an option as the model, or the
    request's preset, has it. `ane say --help-all` explains them.

    A model refuses options that have no effect on it. Settings that only one kind of model has, such as the silence
    that Tortoise keeps, are fields of its own class, ``Speaker.settings``, which ``speak`` takes as well.

    Raises:
        InvalidValueError: An option is unknown, or its value is of a wrong type. ``speak`` raises it for a value out of
            range.
    """

    candidates: int | None = None
    best: int | None = None
    steps: int | None = None
    sampler: Literal["p", "ddim", "dpm++2m"] | None = None
    guidance: float | None = None
    guidance_steps: int | None = None
    noise: float | None = None
    spacing: Literal["even", "logsnr"] | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_mass: float | None = None
    max_codes: int | None = None
    lanes: int | None = None
    normaliser: Literal["english", "upstream", "basic", "de", "es", "fr", "it", "nl", "pl", "pt"] | None = None
    clip_mode: Literal["first", "slices", "whole"] | None = None
    published: bool | None = None
    split: tuple[int, int] | None = None
    no_split: bool | None = None

    def chosen_options(self) -> dict[str, Any]:
        """Return the options that have a value."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.chosen_options().items())})"
