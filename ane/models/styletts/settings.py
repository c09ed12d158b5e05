"""Define the settings of KittenTTS and of Kokoro."""

from ane.speech.settings import SpeechSettings, setting, split_setting
from ane.system.checked import validated


@validated
class KittenSettings(SpeechSettings):
    # ``True`` means exactly the words, chunks and cut of KittenTTS 0.8.1: one chunk per sentence, without its mark, and
    # 5000 samples less. ``False`` means that texts are read as by other models, and silence at the end is trimmed
    published: bool = setting(
        False, "for KittenTTS models, preprocess, split and cut exactly as KittenTTS 0.8.1", group="text"
    )
    split: tuple[int, int] | None = split_setting(200, 400)


@validated
class KokoroSettings(SpeechSettings):
    split: tuple[int, int] | None = split_setting(100, 250)
