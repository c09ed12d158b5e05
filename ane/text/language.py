"""Which other language a text in Latin letters is in, by its commonest words."""

import re

LEAST, SHARE = 4, 0.2       # words of a language that a text must have, and of all its words
ENGLISH = frozenset(re.findall(
    r"\w+", "the and of to a in is it i that was he she you for not with as his her on be at by we they this had have "
            "but from are or said my me so if what all there were"))
COMMON = {name: frozenset(words.split()) - ENGLISH for name, words in {     # without those that are English as well
    "German": "der das und ich nicht ist ein eine auf zu dem den wir sie es für von sich mit im bin möchte nach",
    "French": "le la les et je ne pas est un une des du dans que qui vous nous pour sur elle il au très",
    "Spanish": "el la los las y es un una de que en con por para se del lo yo muy está",
    "Italian": "il lo la gli e non è un una di che con per si della sono mi questo",
    "Portuguese": "os e não é um uma de que com por para se da em eu muito ao",
    "Dutch": "de het een en ik niet met van op te dat voor zijn wij maar ook naar",
    "Polish": "nie się jest w na z że jak ale był co tak po jestem"}.items()}


def foreign_language(text: str) -> str:
    """The name of the language, or "" for English and for what is too short to tell."""
    words = re.findall(r"[^\W\d_]+", text.casefold())
    counts = {name: sum(word in common for word in words) for name, common in COMMON.items()}
    best = max(counts, key=lambda name: counts[name])
    known = counts[best] >= max(LEAST, SHARE * len(words), 2 * sum(word in ENGLISH for word in words))
    return best if known else ""
