"""Define the rules for web addresses, file names, Markdown, HTML, lists and line breaks."""

import re

from ane.text import number_words
from ane.text.letter_rules import FIRST
from ane.text.lexicon import DOMAINS, DOTTED, FILE_TYPES, HTML_ATTRIBUTES, HTML_ELEMENTS
from ane.text.rule import TextRule, any_of, follows, rule

ADDRESS_SIGNS = {
    ".": " dot ",
    "/": " slash ",
    "-": " dash ",
    "_": " underscore ",
    "@": " at ",
    "+": " plus ",
    ":": " colon ",
    "~": " tilde ",
    "%": " percent ",
    "&": " and ",
    "=": " equals ",
}


# A tag of a real HTML element. Attributes without a value must be real, too, because "a <b and c> d" is not a tag.
ATTRIBUTE = (
    r"(?:[a-zA-Z_:@][\w:.@-]{0,40}\s?=\s?(?:\"[^\"\n]{0,300}\"|'[^'\n]{0,300}'|[^\s\"'<>=]{1,300})"
    rf"|(?i:{any_of(HTML_ATTRIBUTES)})(?![\w=-]))"
)
HTML_TAG = (
    rf"<(?i:/?{any_of(HTML_ELEMENTS)})(?:\s{{1,20}}{ATTRIBUTE}){{0,20}}\s{{0,20}}/?>"
    r"|(?s:<!--.{0,1000}?-->)|<![dD][oO][cC][tT][yY][pP][eE][^<>]{0,200}>"
)
BLOCKS = "p|li|h[1-6]|div|dd|dt|tr|blockquote|figcaption|caption"  # elements that end a sentence
# A placeholder such as <name> or <your name>. The two comparisons in "a <b and c> d" are not a placeholder.
PLACEHOLDER = r"<([A-Za-z][\w-]{0,40}|(?<!\w<)[A-Za-z][\w'-]{1,40}(?: [\w'-]{1,40}){1,6}(?!>\w)) ?/?>"


def expand_address(address: str) -> str:
    """Read a.b/c1 as "a dot b slash c one", and .de as "dot d e".

    Digits are read one by one. The codes of countries are spelled, except .co and .me.
    """
    address = re.sub(
        r"\.(?!(?:co|me)\b)([a-zA-Z]{2})(?![\w.@-])", lambda country: f".{' '.join(country[1].upper())}", address
    )
    address = re.sub(r"\d+", lambda number: f" {number_words.digits(number[0])} ", address)
    address = re.sub(r"(?<![\w'])a(?![\w'])", "A", address)
    return re.sub(r"[./_@+:~%&=-]", lambda sign: ADDRESS_SIGNS[sign[0]], address)


def expand_url(match: re.Match) -> str:
    """Write the host and the path of a URL in words. The scheme, "www.", the query and the fragment are left out."""
    address = match["address"].rstrip(".,;:!?)'\"")
    closing = match["address"][len(address) :]
    path = re.sub("%([2-7][0-9A-Fa-f])", lambda code: chr(int(code[1], 16)), re.sub(r"[?#].*", "", address).rstrip("/"))
    return expand_address(path) + closing


WEB_RULES = (
    rule("Markdown link", r"!?\[([^\]\n]{1,300})\]\((?:https?:|/|#|www\.)[^)\s]{0,500}\)", r"\1"),
    rule("[the report][2]", r"!?(?<![\w\]])\[(?=[^\[\]\n]*[A-Za-z]{2})([^\[\]\n]{1,300})\]\[[^\[\]\n]{0,80}\]", r"\1"),
    rule("note [^2]", r"\[\^[\w.-]{1,50}\]", ""),
    rule("<address>", r"<((?:https?://|mailto:)[^<>\s]{1,500}|[^<>\s@]{1,64}@[^<>\s@]{1,200})>", r" \1 "),
    rule("</p>", rf"(?<=[\w)\"'%])\s{{0,9}}</(?i:{BLOCKS})>(?=\s{{0,9}}(?:<|\S))", ". "),
    rule("HTML tag", HTML_TAG, " "),
    rule("<name>", PLACEHOLDER, r" \1 "),
    rule(
        "e-mail",
        r"(?<![\w+-])(?<!\w\.)(?:mailto:)?(\w[\w.+'&-]{0,63}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}(?:/[^\s<>\"]*\w)?)\b",
        lambda match: expand_address(match[1]),
    ),
    rule("https://…", r"(?i:\b(?:https?|ftp)://(?:www\.)?|\bwww\.|\bfile:/{2,3})(?P<address>[^\s<>\"]+)", expand_url),
    rule(
        "example.com",
        rf"(?<![\w@.-])(?P<address>(?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}{any_of(DOMAINS)}\b(?![\w-]|\.\w)"
        r"(?:/[^\s<>\"]*)?)",
        expand_url,
    ),
    rule(
        "file.txt",
        rf"(?<![\w-])([\w-]{{1,80}})\.({any_of(FILE_TYPES)}|{any_of(map(str.upper, FILE_TYPES))})\b(?![\w.-]*@)",
        lambda match: f"{match[1]} dot {' '.join(match[2].lower())}",
    ),
    rule("./run.sh", r"(?<![\w./])\./(?=\w)", "dot slash "),
    rule(
        ".NET, the .env file",
        rf"(?:\b([A-Z]{{2,3}})\.(?=NET)|\.(?<![^\s(\[\"'`*/]\.))({any_of(DOTTED)})\b(?![\w.-]*@)",
        lambda match: f"{'.'.join(match[1] or '')}{'.' * bool(match[1])} dot {DOTTED[match[2]]}",
    ),
    rule("@name", r"(?<!\w)@(?=\w)", "at "),
    rule("#A-1029", r"(?<![\w&])#(?=[A-Z]{1,4}-\d|[A-Z]{1,2}(?!(?:19|20)\d\d\b)\d{3})", "number "),
    rule(
        "#word",
        r"(?<![\w&])#([A-Za-z]\w*)",
        lambda match: "hashtag " + re.sub(r"(?<=[a-z\d])(?=[A-Z])|_", " ", match[1]),
    ),
)

SURE_ESCAPE = re.compile(
    r"(?<![:\\])\\n(?=[A-Z\s\\\"'(*#\d-]|\Z)|[.!?,;]\\n|[\d.!?,;]\\t|\\t(?=[A-Z\s\d\"'(-])"
    # After "\n" or "\t" come consonants with which no word begins, as in "\nnext" and "\tb". Words such as npm and tmp,
    # and commands of TeX, are exceptions.
    r"|(?<=\w)\\n(?!pm\b)[b-df-hj-np-tv-xz]|(?<=\w)\\t(?!mp\b|frac|binom)(?:[b-dfgj-npqtvxz]|wor)"
)
IN_A_PATH = re.compile(r"(?:(?<![A-Za-z])[A-Za-z]:|\\)\\\S*\Z")
AFTER_DRIVE = re.compile(r"(?<![A-Za-z])[A-Za-z]:\Z")


def expand_escape(match: re.Match) -> str:
    r"""Turn a \n of program text into a line break.

    In C:\new, and if nothing nearby shows that \n is a line break, the letters stay.
    """
    text, start = match.string, match.start()
    after = text[match.end() : match.end() + 1]
    path = follows(match, IN_A_PATH, 60) or (after.islower() and follows(match, AFTER_DRIVE))
    if path or not SURE_ESCAPE.search(text, max(0, start - 500), match.end() + 500):
        return match[0]
    return "\n\n" if match[0].endswith("n") else ", "


OPEN_EMPHASIS = re.compile(r"\*(?<!\bA\*)[^\n]*\Z")  # an emphasis that may end after the A: "*Plan A*"


def indexed(match: re.Match) -> str:
    """Write `a[0]` without the brackets, because a number in brackets would be dropped as a citation."""
    return re.sub(r"(?<=[\w\])])\[([\w-]{1,40})\]", r" \1 ", match[0])


LAYOUT_RULES = (
    rule("\\n of a program", r"\\(?:r\\)?[nt]", expand_escape),
    rule("spaces", r"[ \t]{2,}", " "),
    rule("`a[0]`", r"`[^`\n]{1,200}`", indexed),
    rule("citation [12]", r"(?<=[\w.,;:!?)\"'])(?:\[(?!0\])\d{1,3}\])+(?!\[0)", ""),
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
    rule(
        "A* in maths",
        r"A\*(?<![\w*']A\*)(?=[\s.,;:!?)]|s\b|\Z)",
        lambda match: (
            match[0] if follows(match, OPEN_EMPHASIS, 200) else "A-star" if follows(match, FIRST) else "A star"
        ),
    ),
    rule("emphasis", r"(?<![\w*_`])(?:[*_`]{1,3}|~~)(?=\w)|(?<=[\w.,!?)])(?:[*_`]{1,3}|~~)(?![\w*_`])", ""),
    rule("snake_case", r"_+", " "),
)
RULES: tuple[TextRule, ...] = (*WEB_RULES, *LAYOUT_RULES)
