"""The ids of phonemes that the graphs of KittenTTS take; Kokoro has most of them too (kittentts/onnx_model.py)."""

PAD = "$"
PUNCTUATION = ';:,.!?¡¿—…"«»"" '        # the quotation mark three times; the last index of a character counts
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
IPA = ("ɑɐɒæɓʙβɔɕçɗɖðʤəɘɚɛɜɝɞɟʄɡɠɢʛɦɧħɥʜɨɪʝɭɬɫɮʟɱɯɰŋɳɲɴøɵɸθœɶʘɹɺɾɻʀʁɽʂʃʈʧʉʊʋⱱʌɣɤʍχʎʏʑʐʒʔʡʕʢǀǁǂǃ"
       "ˈˌːˑʼʴʰʱʲʷˠˤ˞↓↑→↗↘'\u0329'ᵻ")
SYMBOLS = PAD + PUNCTUATION + LETTERS + IPA                                 # 178, of which 175 differ
VOCABULARY = {symbol: index for index, symbol in enumerate(SYMBOLS)}        # character → id
