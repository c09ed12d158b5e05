"""Numbers in English words exactly as KittenTTS's TextPreprocessor spells them, with its peculiarities.

They are: 1200 is "twelve hundred"; 20th is "twentyth"; groups above the trillions are dropped. ``corrections`` spells
such numbers properly before this module sees them, unless the published text is asked for.
"""

SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
GROUPS = ("", " thousand", " million", " billion", " trillion")
IRREGULAR_ORDINALS = {"one": "first", "two": "second", "three": "third", "four": "fourth", "five": "fifth",
                      "six": "sixth", "seven": "seventh", "eight": "eighth", "nine": "ninth", "twelve": "twelfth"}


def digit_words(text: str) -> str:
    """Each digit as a word: "405" → "four zero five"."""
    return " ".join(SMALL[int(digit)] for digit in text)


def cardinal_words(n: int) -> str:
    """-42 → "negative forty-two"; 1200 → "twelve hundred"; 2500 → "two thousand five hundred"."""
    if n < 0:
        return f"negative {cardinal_words(-n)}"
    if n == 0:
        return SMALL[0]
    if n < 2000 and n % 100 == 0 and n % 1000:
        return f"{SMALL[n // 100]} hundred"
    words = []
    for group in GROUPS:
        n, rest = divmod(n, 1000)
        if rest:
            words.append(_below_thousand(rest) + group)
    return " ".join(reversed(words))


def _below_thousand(n: int) -> str:
    """1 … 999 in words."""
    hundreds, rest = divmod(n, 100)
    words = [f"{SMALL[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(TENS[tens - 2] + (f"-{SMALL[ones]}" if ones else ""))
    elif rest:
        words.append(SMALL[rest])
    return " ".join(words)


def decimal_words(text: str) -> str:
    """A number as written: "-1.50" → "negative one point five zero"; without a point as ``cardinal_words``.

    Raises:
        ValueError: it is not digits with at most one point.
    """
    if text.startswith("-"):
        return f"negative {decimal_words(text[1:])}"
    whole, point, decimals = text.partition(".")
    if not point:
        return cardinal_words(int(whole))
    return f"{cardinal_words(int(whole or '0'))} point {digit_words(decimals)}"


def number_words(text: str) -> str:
    """Digits with or without a decimal point, in words. Raises ValueError for anything else."""
    return decimal_words(text) if "." in text else cardinal_words(int(text))


def ordinal_words(n: int) -> str:
    """21 → "twenty-first". What follows the last hyphen counts as one word, so 20 → "twentyth"."""
    words = cardinal_words(n)
    separator = "-" if "-" in words else " "
    before, found, last = words.rpartition(separator)
    if last not in IRREGULAR_ORDINALS:
        last = last.removesuffix("e") + ("h" if last.endswith("t") else "th")
    return before + found + IRREGULAR_ORDINALS.get(last, last)
