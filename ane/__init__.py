"""Turn text into speech with Tortoise and other models, on PyTorch, MLX, Core ML or ONNX Runtime.

>>> import ane
>>> speech = ane.load().speak("Hello.")
>>> speech.audio, speech.sample_rate
"""

from __future__ import annotations  # so that an old Python can import the package, and report that it is too old

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.system.errors import PATH, InvalidValueError, NoEffectError, NotFoundError, UserError, check_path, check_type

if TYPE_CHECKING:  # importing NumPy and pydantic takes a tenth of a second, and importing torch a second
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
    "NoEffectError",
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
}  # public name → module below ane, imported when a program first uses the name


if not TYPE_CHECKING:  # hidden from type checkers, so that they report unknown names

    def __getattr__(name: str) -> Any:
        """Import a public name from its module when a program first uses it, and return the object.

        ``__version__`` is the version of the installed package.
        """
        if name == "__version__":
            from ane.system.version import version

            return version()
        if name not in PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = PLACES[name].partition(":")
        return getattr(import_module(f"ane.{module}"), attribute or name)

    def __dir__() -> list[str]:
        """List all public names, without importing their modules."""
        return sorted({*globals(), *__all__})


def load(
    bundle: str | Path | None = None,
    backend: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    keep: bool | None = None,
) -> Speaker:
    """Open a model on a backend, and return the speaker whose ``speak`` turns text into speech.

    The model may be hibari (the default), Tortoise, FastSpeech, KittenTTS or Kokoro. You can pickle the speaker. The
    pickle holds only the arguments of ``load``, and unpickling opens the model again.

    Args:
        bundle: Name or folder of a bundle. ``None`` means the default voice, "heart". Import a checkpoint with
            `ane import` first.
        backend: "auto", or a backend with its device, such as "torch:cuda".
        precision: "auto", "fp32", "bf16", "fp16" or, on the CPU, "int8". Some backends take other precisions: see
            ``ane.backends.load_backend``.
        threads: Number of CPU threads for the whole process. ``None`` means that the backend chooses.
        keep: Whether networks stay loaded between requests. On accelerators, where loading is slow, ``None`` keeps all
            networks loaded. On the CPU, ``None`` keeps only FastSpeech's networks loaded. The others are memory-mapped
            there, and releasing them halves the peak memory.

    Raises:
        NotFoundError: There is no such model or backend.
        UserError: The model is damaged, or this machine lacks the backend.
    """
    from ane.backends import load_backend
    from ane.bundles import is_path, open_model

    check_type("bundle", bundle, (*PATH, type(None)), "a name or a path")
    check_type("backend", backend, str, "the name of a backend")
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
    """Transcribe a recording with a Whisper model.

    Each call loads the model. To transcribe many recordings, create one
    ``ane.models.whisper.transcription.Transcriber`` instead.

    Args:
        path: Path of a sound file, at most a day long.
        model: Name or folder of a bundle. ``None`` means the bundle "whisper".
        language: Language of the recording, such as "en", "German" or "pt-BR". ``None`` detects it from the first 30
            seconds.
        translate: Whether to translate to English.
        prompt: Text that comes before the recording, for example names with the spelling you want.
        word_times: Whether to time every word, for ``Transcript.words``.
        backend: Backend, as for ``load``.
        precision: Precision, as for ``load``.
        threads: Number of CPU threads, as for ``load``.

    Raises:
        NotFoundError: There is no such recording, model or backend.
        UserError: The recording or the model is damaged, the model is not a Whisper model, or it lacks a requested
            feature.
    """
    from ane.audio.reader import read_recording
    from ane.backends import load_backend
    from ane.models.whisper.transcription import Transcriber, TranscriptionOptions, open_whisper

    check_path(path)
    check_type("model", model, (*PATH, type(None)), "a name or a path")
    check_type("backend", backend, str, "the name of a backend")
    options = TranscriptionOptions(
        language, "translate" if translate else "transcribe", prompt=prompt, word_times=word_times
    )
    (audio, rate), opened = read_recording(path), open_whisper(model)
    return Transcriber(opened, load_backend(backend, opened, precision, threads)).transcribe(audio, rate, options)
