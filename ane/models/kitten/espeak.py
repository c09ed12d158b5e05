"""espeak-ng as the phonemizer: the extra ``kitten`` installs it. It is GPL-3.0-or-later, so nothing else imports it."""

import os

from ane.models.kitten.phonemes import Phonemizer, phonemize
from ane.system.errors import UserError


def load_espeak() -> Phonemizer:
    """Load espeak-ng for American English, as KittenTTS does: stress marks, punctuation preserved.

    The data of the espeakng_loader wheel is passed on in the variable ESPEAK_DATA_PATH of this process.

    Raises:
        UserError: phonemizer or espeakng_loader is not installed, or the library does not load.
    """
    try:
        import espeakng_loader
        from phonemizer.backend import EspeakBackend
        from phonemizer.backend.espeak.wrapper import EspeakWrapper
    except ImportError as error:
        raise UserError(f"KittenTTS needs {error.name} to convert text to phonemes: pip install 'tortoise-ane[kitten]' "
                        "(espeak-ng, GPL-3.0-or-later), or pass phonemizer=, a function from text to IPA") from error
    try:
        EspeakWrapper.set_library(espeakng_loader.get_library_path())
        os.environ["ESPEAK_DATA_PATH"] = espeakng_loader.get_data_path()
        backend = EspeakBackend("en-us", preserve_punctuation=True, with_stress=True)
    except (RuntimeError, OSError) as error:
        raise UserError(f"espeak-ng does not load: {error}; pip install --force-reinstall espeakng_loader "
                        "phonemizer") from error

    def ipa(text: str) -> str:
        return backend.phonemize([text])[0]

    return lambda text: phonemize(ipa, text)
