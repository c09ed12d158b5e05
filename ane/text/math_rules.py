"""Define the rules for formulas: comparisons, powers, functions, scientific numbers, TeX and chemical formulas."""

import re

from ane.text import number_words
from ane.text.lexicon import CLAUSE_STARTERS, ELEMENTS, FUNCTIONS, NO_FORMULAS, NONMETALS, TEX, VERBS_OF_AMOUNTS
from ane.text.number_rules import UNIT_AFTER, expand_unit
from ane.text.rule import TextRule, any_of, follows, rule, with_digits

COMPARISONS = {
    "<": "less than",
    ">": "greater than",
    "<=": "at most",
    "≤": "at most",
    ">=": "at least",
    "≥": "at least",
    "≈": "about",
}
OPERAND = r"\d+(?:\.\d+)?(?![-\w]|\.\w)"  # a number, which may end a sentence
IN_CLAUSE = rf"(?:(?!\b(?i:{any_of(CLAUSE_STARTERS)})\b)[^.,;:!?()<>=≤≥≈\n])*"
PLURAL = r"[a-z][b-hj-rtv-z]s ?"
CONDITION = re.compile(rf"\b(?i:if|when|while|where|unless|until) [a-z]{{0,20}}{PLURAL}\Z")
# Text before a sign that is read without "is", because there is a verb, or no verb is needed: "values ≥ 3",
# "scored ≥ 90", "should be ≤ 40", "use g ≈ 9.81".
HAS_VERB = re.compile(
    rf"{PLURAL}\Z|[a-z][a-df-z]ed ?\Z|\b(?i:{any_of(CLAUSE_STARTERS)}) ?\Z"
    rf"|\b(?:(?i:{any_of(VERBS_OF_AMOUNTS)})\b|(?:I|[Ww]e|[Yy]ou|[Tt]hey|[Ss]?[Hh]e) (?=[a-z]))"
    rf"{IN_CLAUSE}\Z"
)


VERB_AFTER = re.compile(r"[\w.]+%? (?:is|are|was|were|means?|indicates?|suggests?|implies)\b")
COMPARED = re.compile(r"(?:<=|<|≤) ?[\w.]{1,12} ?\Z")


def expand_comparison(match: re.Match) -> str:
    """Read x ≤ 5 as "x is at most 5", but leave "is" out after a verb: "should be at most 5".

    The second sign of 3 ≤ n < 10 is "which is less than".
    """
    verb = "are " if follows(match, CONDITION) else "" if follows(match, HAS_VERB, 48) else "is "
    verb = "" if VERB_AFTER.match(match.string, match.end()) else verb
    verb = "which is " if match[1] in ("<", "<=", "≤") and follows(match, COMPARED) else verb
    return f" {verb}{COMPARISONS[match[1]]} "


def expand_minus(match: re.Match) -> str:
    """Read the dash of 2x – 1 and of 5 – 3 = 2 as "minus". The dashes of 5 – 8 and "1-5 = low" are those of ranges."""
    text, end = match.string, match.end()
    first, second = follows(match, COUNT_BEFORE), COUNT_AFTER.match(text, end)
    alike = first and second and first[2] == second[2]
    falls = not alike or float(first[1]) > float(second[1])
    if first and (sum_of := SUM_AFTER.match(text, end)):
        result = re.sub("[–−]", "-", sum_of[2])
        minus = falls or not result[-1].isdecimal() or float(first[1]) - float(sum_of[1]) == float(result)
    elif follows(match, TERM_BEFORE):
        minus = bool(TERM_AFTER.match(text, end)) and falls
    else:
        minus = bool(not alike and TERM_AFTER.match(text, end) and EQUALS_AFTER.match(text, end))
        minus = minus or bool(falls and LAST_TERM.match(text, end) and follows(match, EQUALS_BEFORE, 60))
    return f"{' ' * (len(match[0]) == 1)}minus " if minus else match[0]


COUNT_BEFORE = re.compile(r"(?<![\w.,])(\d+(?:\.\d+)?)(x?) ?\Z")
COUNT_AFTER = re.compile(r"(\d+(?:\.\d+)?)(x?)(?![\w.]\w|\w)")
# The rest of a sum of numbers, and its result: "5 – 3 = 2", "9 - 4 - 2 = ?".
SUM_AFTER = re.compile(r"(\d+)(?: ?[-–+*/×] ?\d+){0,5} ?= ?([-–−]?\d+|[?b-z]|_+)(?!\w)")
# A term that is surely one of a formula: "2x", "n", "b²", "(a + b)". The "m²" of an area is not.
TERM_BEFORE = re.compile(
    r"(?:(?<![\w'./])(?:\d*[nxyz]|\d*[a-ln-z][²³])|= ?\d*[b-hj-z]|[\w)]\^\d+|[-+*/×–] ?\w{1,3}\)) ?\Z"
)
PEOPLE_AFTER = (
    r"(?! (?:more )?(?:others?|people|(?:wo)?men|children|kids|players|friends|students|users|of (?:us|them))\b)"
)
TERM_AFTER = re.compile(
    rf"(?:\d+(?:\.\d+)?(?:[a-z]{{1,2}})?(?![-\w]|\.\w){PEOPLE_AFTER}|[b-hj-z][²³]?(?![\w']))|√|\(\w{{1,4}} ?[-+*/×–)]"
)
EQUALS_AFTER = re.compile(r"[\w.]{1,9}[²³]?(?: [-+*/×–] [\w.]{1,9}){0,5} ?=")
EQUALS_BEFORE = re.compile(r"= ?(?:[\w.²³()]+ [-+*/×–] ){0,5}(?:[\w²³()]*[A-Za-z²³)]|\d+) ?\Z")
LAST_TERM = re.compile(r"[\w.²³]{0,20}[\w²³](?=[,;:!?)]|\.?(?:\s*\Z|\s*\n|\s[A-Z])| [-+*/×=–] )")


OPERATOR_BEFORE = re.compile(r"(?:[+=*]\s?| - | minus )\Z")


def expand_power(match: re.Match) -> str:
    """Read x^2 as "x squared", and 10^-6 as "10 to the power of minus six". A unit after the power is read, too."""
    exponent, end = match[1].lstrip("-"), " " * match.string[match.end() : match.end() + 1].isalpha()
    if match["unit"]:
        known = match.string.endswith("10", 0, match.start())
        end = f" {expand_unit(match)}" if known else f" {match.string[match.end(1) : match.end()].strip()}"
    if exponent == "n":
        return f" to the power of {match[1].replace('-', 'minus ')}{end}"
    if match[1] in ("2", "3"):
        return (" squared" if exponent == "2" else " cubed") + end
    return f" to the power of {'minus ' if match[1] != exponent else ''}{number_words.number(exponent)}{end}"


def expand_exponent(match: re.Match) -> str:
    """Read e^(-x/2) as "e to the power of minus x over 2"."""
    return f" to the power of {re.sub('[-−–+*/]', lambda sign: f' {EXPONENT_SIGNS[sign[0]]} ', match[1])} "


POWER_NAMES = {"²": "squared", "³": "cubed"}
EXPONENT_SIGNS = {**dict.fromkeys("-−–", "minus"), "+": "plus", "*": "times", "/": "over"}


def expand_scientific(match: re.Match) -> str:
    """Read 1.5e-3 as "1.5 times ten to the minus three"."""
    sign = "minus " if match[2] in ("-", "−") else ""
    unit = f" {expand_unit(match)}" if match["unit"] else ""
    return f"{match[1]} times ten to the {sign}{number_words.cardinal(int(match[3]))}{unit}"


def expand_function(match: re.Match) -> str:
    """Read f(x) as "f of x", sin(2x) as "sine of 2 x" and P(A|B) as "P of A given B"."""
    inside = re.sub(r"(?<=\d)(?=[a-z])", " ", re.sub(r"\ba\b", "A", match[2].replace("|", " given ")))
    return f"{FUNCTIONS.get(match[1], match[1])} of {inside}"


# An argument of a function, after the rules for signs have run: x, minus 5, n log n, x plus 1, A|B.
VARIABLE = r"(?:\d+(?:\.\d+)?(?: ?[a-z])?|[A-Za-z]|pi|theta|alpha|beta)(?:²|³|\^\d|(?: squared| cubed)(?=\W))?"
OPERATOR_OF = r"(?: ?[+*/|−-] ?|, ?| {1,2}(?:(?:log|minus|to the power of|intersection|union) {1,2})?)"
TERM = rf"(?:[-−] ?| ?minus )?{VARIABLE}(?:{OPERATOR_OF}{VARIABLE}){{0,4}}"


def expand_tex(match: re.Match) -> str:
    r"""Write $\frac{a}{b} \le x_1$ as " a over b ≤ x 1". Dollar signs around other text stay, as in "$5 or US$"."""
    formula = match[1] or match[2]
    if re.fullmatch("[A-Za-z]{3,}", formula) or (
        formula[0].isdigit() and not re.search(r"[\\^={}]|\d[a-z]\b", formula)
    ):
        return match[0]
    return f" {plain_formula(formula)} "


def plain_formula(formula: str) -> str:
    r"""Remove commands and braces from a TeX formula: x_{1}^{2} \le \frac{a}{b} becomes "x 1^2 ≤ a over b"."""
    formula = re.sub(r"\\([%$#])", r"\1", re.sub(r"\^\s*\{?\\circ\}?", "°", formula))
    formula = re.sub(r"\\(sum|prod|int)\s*_\s*(\{[^{}]*\}|\w)\s*\^\s*(\{[^{}]*\}|\\?\w+)", expand_bounds, formula)
    formula = re.sub(r"(?<=\d)(?=[a-df-zA-Z])", " ", formula)  # otherwise 3x would be read as "three times"
    formula = re.sub(r"\\(?:begin|end)\s*\{[^{}]*\}|\\[^A-Za-z]|&", " ", formula)
    formula = re.sub(r"([_^])\s*\{(-?(?:\d+|[a-z]))\}", r"\1\2", formula)
    formula = re.sub(r"\^\s*\{([^{}]*)\}", r" to the power of \1 ", formula).replace("_", " ")
    for _ in range(3):  # fractions and roots may contain other fractions and roots
        formula = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1 over \2 ", formula)
        formula = re.sub(r"\\sqrt\s*\{([^{}]*)\}", r" √ \1 ", formula)
    formula = re.sub(r"\\([A-Za-z]+)", lambda name: f" {TEX.get(name[1], name[1])} ", formula)
    return " ".join(re.sub(r"[{}]", " ", formula).split())


def expand_bounds(match: re.Match) -> str:
    r"""Read a sum with its bounds, \sum_{i=1}^n, as "the sum from i=1 to n of"."""
    return f" {TEX[match[1]].removesuffix(' of')} from {match[2]} to {match[3]} of "


def expand_formula(match: re.Match) -> str:
    """Spell CO2 as "C.O 2", H2SO4 as "H 2 S.O 4" and Ca^2+ as "C.A 2 plus". All the symbols must be elements."""
    formula, _, charge = match[0].partition("^")
    positive = (charge or formula).endswith("+")
    formula, charge = formula.rstrip("+"), charge.rstrip("+-−")
    parts = re.findall(r"([A-Z][a-z]?)(\d*)", formula)
    word = formula in NO_FORMULAS or (formula.isalpha() and len(parts) > 1 and parts[-1][0] not in NONMETALS)
    if word or not all(element in ELEMENTS for element, _ in parts):
        return match[0]
    spelt = re.sub(
        r"(?<=[A-Z])(?=[A-Z])",
        ".",
        "".join(f"{element.upper()} {count} " if count else element.upper() for element, count in parts),
    ).strip()
    return spelt if formula == match[0] else f"{spelt} {charge} {'plus' if positive else 'minus'}"


RULES: tuple[TextRule, ...] = (
    rule("$x^2$", r"\$\$([^$]{1,300})\$\$|\$(?![\s$])([^$\n]{1,120})(?<!\s)\$(?!\w)", expand_tex),
    rule(
        "sin²θ, cos x",
        r"\b(sin|cos|tan|log|ln)(?: ?([²³]) ?| |(?=theta|phi))(?=(?:theta|alpha|beta|phi|[xyt])\b)",
        lambda match: f"{FUNCTIONS[match[1]]} {POWER_NAMES.get(match[2], '')} ",
    ),
    rule("x^(n+1)", r"(?<=[\w)])\^ ?\(([^()]{1,20})\)", expand_exponent),
    rule("y = mx + b", r"(?<== )([a-km-z])(x)\b(?= ?[+–−-])", r"\1 \2"),
    rule("dy/dx", r"\bd([a-z])/d([a-z])\b", r"d \1 over d \2"),
    rule("f'(x)", r"\b([fgh])'\(([a-z])\)", r"\1 prime of \2"),
    rule("10^−6", r"(?<=[\^eE$£€¥])−(?=\d)|(?<=\^\d)−", "-"),
    *with_digits(
        rule("3e-5", r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?)(\d{1,3})(?![\w.]\w|\w)" + UNIT_AFTER, expand_scientific),
        rule(
            "0x1F",
            r"\b0[xX]([0-9a-fA-F]{1,16})\b",
            lambda match: (
                "hex " + " ".join(number_words.digits(sign) if sign.isdigit() else sign.upper() for sign in match[1])
            ),
        ),
    ),
    rule(
        "n!, 5! = 120",
        r"!(?:(?<=(?<![\w'.])[b-hj-z]!)(?=\s?[+*/^=<>≤≥)]|-)|(?<=[+*/=(][b-hj-z]!)|(?<=(?<![\w'.])n!)"
        r"|(?<=\d!)(?=\s?[+*/^=<>≤≥]))(?![!=?])",
        " factorial",
    ),
    rule(
        "(n-1)!",
        r"(\((?=[^()]{0,60}[a-z])(?:[a-z]|\d{1,9})(?:\s?[-+*−]\s?(?:[a-z]|\d{1,9})){1,5}\))!(?![!=?])",
        r"\1 factorial",
    ),
    rule("n!/k!", r"(?<= factorial) ?/ ?", " over "),
    rule("2x – 1, 5-3=2", r"[-–](?:(?<=[\w)²³] [-–]) (?=[\w√(])|(?<=\d[-–])(?=\d+(?:[-–]\d+){0,5} ?=))", expand_minus),
    rule("x−1", r" ?− ?", " minus "),
    rule(
        "0.1 M HCl",
        r"M(?:(?<=\dM)|(?<=\d M))(?= (?:[a-z]+ )?(?:solution|acid|hydroxide|chloride|buffer)\b"
        r"| (?:H|K|Na|Ca|Mg|Cu|Fe|Ag|NH)(?=[A-Za-z0-9()]*[a-z\d]|OH)[A-Z(][A-Za-z0-9()]*(?![\w-]))",
        " molar",
    ),
    rule(
        "CO2, H2SO4, NaCl",
        r"[A-Z](?<!\w[A-Z])(?=[A-Za-z]{0,9}\d|[A-Z]{0,2}[a-z][A-Z]|(?<=[HK])(?:Cl|Br)\b)"
        r"[a-z]?\d{0,3}(?:[A-Z][a-z]?\d{0,3}){1,7}(?![\w+^])",
        expand_formula,
    ),
    rule(
        "Ca2+, SO4^2-",
        r"[A-Z](?<!\w[A-Z])[a-z]?\d{0,3}(?:[A-Z][a-z]?\d{0,3}){0,7}(?:\^\d?[+−-]|\+)(?![\w+])",
        expand_formula,
    ),
    *with_digits(
        rule(
            "3x - 5",
            r"(?<![\w.])(\d+)([xX])(?= minus | [-+=*] ?[\w(.]|[+=*^] ?[\w(.]|-(?!\d+[xX]\b)[\w(.]| ?[²³^])",
            r"\1 \2",
        ),
        rule(
            "2 + 3x",
            r"\d(?<=[-+=* s]\d)\d*[xX]\b(?!-)",
            lambda match: f"{match[0][:-1]} {match[0][-1]}" if follows(match, OPERATOR_BEFORE) else match[0],
        ),
        rule("5 - 3x", r" - (?=\d+ [xX]\b)", " minus "),
    ),
    rule("x - 1", rf"-(?:(?<=\b[knxyz]-)(?={OPERAND})|(?<=\b[a-z] -) (?={OPERAND}|[a-z]\b))", " minus "),
    rule("2^10", r"(?:\^|(?<=\d)\*\*) ?(-?(?:\d+|n\b))" + UNIT_AFTER, expand_power),
    rule(
        "3 < 4, x ≈ 3", r"(?<=[\w)|])(?<![^\w)]\|) ?(≈|(?:<=|>=|<|>|≤|≥)(?= ?(?:[\w$£€√-]|\.\d))) ?", expand_comparison
    ),
    rule("< 4", r"(<=|>=|<|>|≤|≥)\s*(?=[$£€]?\.?\d)", lambda match: f" {COMPARISONS[match[1]]} "),
    rule("f(x)", rf"(?<![\w.'/-])([f-hFGHPO]|{any_of(FUNCTIONS)})\(({TERM})\)", expand_function),
    rule("|x|", rf"\|(?<![|\w]\|)({TERM})\|(?![|\w])", r" the absolute value of \1 "),
)
