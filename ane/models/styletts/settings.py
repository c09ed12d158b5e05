"""Define the settings of a request to KittenTTS, and of a request to Kokoro."""

from ane.speech.settings import SpeechSettings, setting, split_setting
from ane.system.checked import validated


@validated
class KittenSettings(SpeechSettings):
    # ``True`` does exactly what KittenTTS 0.8.1 does: it spells out text by KittenTTS's rules, makes one chunk per
    # sentence without the final mark, and cuts 5000 samples from the end of a chunk. ``False`` reads text as for other
    # models, and trims silence.
    published: bool = setting(
        False, "preprocess, split and cut exactly as KittenTTS 0.8.1 does (KittenTTS models only)", group="text"
    )
    split: tuple[int, int] | None = split_setting(200, 400)


@validated
class KokoroSettings(SpeechSettings):
    split: tuple[int, int] | None = split_setting(100, 250)
