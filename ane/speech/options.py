"""Define ``ane.Settings``, one class for every model, whose fields are the options of `ane say`."""

from typing import Any, Literal

from ane.system.checked import validated


@validated
class SpeechOptions:
    """The options of `ane say`, for ``Speaker.speak``. Programs import this class as ``ane.Settings``.

    If an option is ``None``, the request's preset or the model determines its value. `ane say --help-all` explains
    every option. An option that has no effect on the model is an error.

    A setting that only one kind of model has, such as the silence that Tortoise keeps, is not an option here. It is a
    field of the model's own class of settings, ``Speaker.settings``. ``speak`` also takes an object of that class.

    Raises:
        InvalidValueError: An option is unknown, or its value has the wrong type. If a value is out of range, ``speak``
            raises the error.
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
        """Return the options that are not ``None``, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.chosen_options().items())})"
