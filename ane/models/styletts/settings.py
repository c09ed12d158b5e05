"""The settings of a request, apart from its text and voice: of each of the two kinds."""

from ane.speech.settings import SpeechSettings, setting, split_setting
from ane.system.checked import validated


@validated
class KittenSettings(SpeechSettings):
    # exactly the words, the chunks and the cut of KittenTTS 0.8.1: each sentence on its own, without its mark, 5000
    # samples less; False: texts are read as by other models, and silence at the end of a chunk is trimmed
    published: bool = setting(
        False, "for KittenTTS models: preprocess, split and cut exactly as KittenTTS 0.8.1", group="text"
    )
    split: tuple[int, int] | None = split_setting(200, 400)


@validated
class KokoroSettings(SpeechSettings):
    split: tuple[int, int] | None = split_setting(100, 250)
