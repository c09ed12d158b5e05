"""Rules for what is not prose: web addresses, file names, Markdown, HTML, lists and line breaks."""

import re

from ane.text.lexicon import DOMAINS, FILE_TYPES
from ane.text.rules import Rule, any_of, rule

ADDRESS_SIGNS = {".": " dot ", "/": " slash ", "-": " dash ", "_": " underscore ", "@": " at ", "+": " plus ",
                 ":": " colon ", "~": " tilde ", "%": " percent ", "&": " and ", "=": " equals "}


def say_address(address: str) -> str:
    return re.sub(r"[./_@+:~%&=-]", lambda sign: ADDRESS_SIGNS[sign[0]], address)


def say_url(match: re.Match) -> str:
    """The host and path; scheme, "www.", query and fragment are left out, as nobody would read them."""
    address = match["address"].rstrip(".,;:!?)'\"")
    closing = match["address"][len(address):]
    return say_address(re.sub(r"[?#].*", "", address).rstrip("/")) + closing


def say_file(match: re.Match) -> str:
    """notes.txt → "notes dot t x t"."""
    return f"{match[1]} dot {' '.join(match[2].lower())}"


def say_hashtag(match: re.Match) -> str:
    """#MakeItSo → "hashtag Make It So"."""
    return "hashtag " + re.sub(r"(?<=[a-z\d])(?=[A-Z])|_", " ", match[1])


WEB: tuple[Rule, ...] = (
    rule("Markdown link", r"!?\[([^\]\n]{1,300})\]\((?:https?:|/|#|www\.)[^)\s]{0,500}\)", r"\1"),
    rule("<address>", r"<((?:https?://|mailto:)[^<>\s]{1,500}|[^<>\s@]{1,64}@[^<>\s@]{1,200})>", r" \1 "),
    rule("HTML tag", r"</?[a-zA-Z][a-zA-Z0-9]{0,15}(?:\s[^<>\n]{0,300})?/?>|<!--.{0,300}?-->", " "),
    rule("e-mail", r"(?<![\w.+-])(?:mailto:)?([\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5})\b",
         lambda match: say_address(match[1])),
    rule("https://…", r"(?i:\b(?:https?|ftp)://(?:www\.)?|\bwww\.)(?P<address>[^\s<>\"]+)", say_url),
    rule("example.com", rf"(?<![\w@.-])(?P<address>(?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}{any_of(DOMAINS)}\b(?![\w-]|\.\w)"
         r"(?:/[^\s<>\"]*)?)", say_url),
    rule("file.txt", rf"(?<![\w-])([\w-]{{1,80}})\.({any_of(FILE_TYPES)})\b(?![\w.-]*@)", say_file),
    rule("@name", r"(?<!\w)@(?=\w)", "at "),
    rule("#word", r"(?<![\w&])#([A-Za-z]\w*)", say_hashtag),
)

LAYOUT: tuple[Rule, ...] = (
    rule("spaces", r"[ \t]{2,}", " "),
    rule("citation [12]", r"(?<=[\w.,;:!?)\"'])(?:\[\d{1,3}\])+", ""),
    rule("divider", r"(?m)^[ \t]*([-=_*~#+])(?:[ \t]*\1){2,}[ \t]*$", ""),
    rule("divider in a line", r"[=*#~_]{4,}|-{4,}", " "),
    rule("heading or quotation", r"(?m)^[ \t]*(?:#{1,6}|>{1,6})[ \t]+", ""),
    rule("next bullet", r"(?<=[\w)\"'])[ \t]*\n[ \t]*[-*+][ \t]+", ",\n"),
    rule("first bullet", r"(?m)^[ \t]*[-*+][ \t]+", ""),
    rule("next numbered item", r"(?<=[\w)\"'])[ \t]*\n(?=[ \t]*\d{1,2}[.)][ \t]+[A-Za-z\"'(])", ".\n"),
    rule("numbered item", r"(?m)^[ \t]*(\d{1,2})[.)][ \t]+(?=[A-Za-z\"'(])", r"\1, "),
    rule("paragraph", r"(?<=[\w)\"'%])[ \t]*\n[ \t]*\n\s*", ".\n"),
    rule("line", r"(?<![.\n])[ \t]*\n(?!\n)", " "),
    rule("emoticon", r"(?<!\S)(?:[:;]-?[()DPpoO/\\|]|<3)(?!\S)", ""),
    rule("emphasis", r"(?<![\w*_`])(?:[*_`]{1,3}|~~)(?=\w)|(?<=[\w.,!?)])(?:[*_`]{1,3}|~~)(?![\w*_`])", ""),
    rule("snake_case", r"_+", " "),
)
