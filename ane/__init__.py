"""Tortoise text-to-speech for Apple Silicon, with a PyTorch reference backend.

>>> import ane
>>> speech = ane.load().speak("Hello.")
>>> speech.audio, speech.sample_rate
"""

from __future__ import annotations  # an old Python can then import the package, and say that it cannot run it

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.system.errors import InvalidValueError, NotFoundError, UserError

if TYPE_CHECKING:  # NumPy and pydantic take a tenth of a second to import, torch a second
    from ane.models.whisper.transcript import Transcript
    from ane.speech.options import SpeechOptions as Settings
    from ane.speech.speaker import Speaker
    from ane.speech.stream import Speech, Stream
    from ane.text.user_lexicon import Lexicon, read_lexicon
    from ane.voices.voice import Voice, load_voice, save_voice

    __version__: str

__all__ = [
    "InvalidValueError",
    "Lexicon",
    "NotFoundError",
    "Settings",
    "Speaker",
    "Speech",
    "Stream",
    "Transcript",
    "UserError",
    "Voice",
    "__version__",
    "load",
    "load_voice",
    "read_lexicon",
    "save_voice",
    "transcribe",
]
PLACES = {
    "Settings": "speech.options:SpeechOptions",
    "Speaker": "speech.speaker",
    "Speech": "speech.stream",
    "Stream": "speech.stream",
    "Transcript": "models.whisper.transcript",
    "Lexicon": "text.user_lexicon",
    "read_lexicon": "text.user_lexicon",
    "Voice": "voices.voice",
    "load_voice": "voices.voice",
    "save_voice": "voices.voice",
}  # modules below ane, imported when a name is asked for


if not TYPE_CHECKING:  # a type checker then refuses a name that is not there

    def __getattr__(name: str) -> Any:
        """Return one of the names of ``PLACES``, or ``__version__``, which is read from the installed package."""
        if name == "__version__":
            from ane.system.version import version

            return version()
        if name not in PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = PLACES[name].partition(":")
        return getattr(import_module(f"ane.{module}"), attribute or name)


def load(
    bundle: str | Path | None = None,
    backend: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    keep: bool | None = None,
) -> Speaker:
    """Open a model on a backend; call ``speak`` on the result.

    The result is an ``ane.Speaker`` of the model's family: of hibari for the default voice, else of Tortoise,
    FastSpeech, KittenTTS or Kokoro. It can be pickled: these arguments are, and the model is opened again elsewhere.

    Args:
        bundle: a bundle's name or directory; None: the default voice, "heart". Checkpoints are imported first,
            with `ane import`.
        backend: "auto", or a backend and device such as "torch:cuda".
        precision: "auto", "fp32", "bf16" or "fp16"; others depend on the backend (``ane.backends.load_backend``).
        threads: CPU threads of the whole process; None: the backend's choice.
        keep: keep networks loaded between requests. None: on accelerators, where loading is slow, and FastSpeech's; on
            the CPU those of the others are memory-mapped, and releasing them halves the peak memory.

    Raises:
        NotFoundError: no such model or backend.
        UserError: a damaged model, or a backend that this machine lacks.
    """
    from ane.backends import load_backend
    from ane.bundles import is_path, open_model

    model = open_model(bundle)
    speaker: Speaker = model.family.synthesizer(model, load_backend(backend, model, precision, threads, keep))
    stored = bundle is None or not (isinstance(bundle, Path) or is_path(bundle))
    speaker.loaded_by = load, (bundle if stored else str(model.path.absolute()), backend, precision, threads, keep)
    return speaker


def transcribe(
    path: str | Path,
    model: str | Path | None = None,
    *,
    language: str | None = None,
    translate: bool = False,
    prompt: str = "",
    word_times: bool = False,
    backend: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
) -> Transcript:
    """Transcribe a recording with a Whisper model, which is loaded for this call. For many recordings, make one
    ``ane.models.whisper.transcription.Transcriber``.

    Args:
        path: Sound file of any length up to a day.
        model: Name or directory of a bundle. With None, the bundle "whisper".
        language: Such as "en", "German" or "pt-BR". With None, that of the first 30 seconds.
        translate: Whether to translate to English.
        prompt: Text before the recording begins, such as names to be spelt that way.
        word_times: Whether to time every word, for ``Transcript.words``.
        backend, precision, threads: As of ``load``.

    Raises:
        NotFoundError: no such recording, model or backend.
        UserError: the recording or the model is damaged, the model is not Whisper, or it cannot do what is asked.
    """
    from ane.audio.reader import read_recording
    from ane.backends import load_backend
    from ane.models.whisper.transcription import Transcriber, TranscriptionOptions, open_whisper

    options = TranscriptionOptions(
        language, "translate" if translate else "transcribe", prompt=prompt, word_times=word_times
    )
    opened, (audio, rate) = open_whisper(model), read_recording(path)
    return Transcriber(opened, load_backend(backend, opened, precision, threads)).transcribe(audio, rate, options)
