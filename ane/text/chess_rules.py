"""Define the rules for moves in a game of chess: "2. Nf3", "exd5", "O-O" and "e8=Q#"."""

import re

from ane.text.lexicon import ELEMENTS, LETTERED
from ane.text.rule import TextRule, any_of, follows, rule

PIECES = {"K": "king", "Q": "queen", "R": "rook", "B": "bishop", "N": "knight"}
CHECKS = {"+": " check", "#": " checkmate", "": ""}
MOVE = r"(?:[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](?:=[QRBN])?|O-O(?:-O)?)[+#]?(?![\w.]\w|\w)"
MOVE_BEFORE = re.compile(r"(?:[a-h][1-8][+#]?|O-O|\b\d{1,3}[.,]|\b[Pp]lay(?:s|ed)?|\bmoved?),? \Z")
NOT_SURELY_MOVES = ELEMENTS | {"Bb", "Ka", "Kb", "Kc", "Kd", "Rf"}
LABEL_BEFORE = re.compile(rf"\b(?i:{any_of([*LETTERED, 'gene', 'genes', 'protein', 'flat', 'lot', 'desk'])}) \Z")
MOVE_ENDS = re.compile(r"(?:[a-h][1-8]|O|=[QRBN])[+#]? \Z")
MOVE_AFTER = re.compile(rf"[,;]? (?:\d{{1,3}}\. ?)?{MOVE}")


def expand_move(match: re.Match) -> str:
    """Read Nf3 as "knight F3", and exd5 as "E takes D5".

    Na2 may be sodium, Bb7 a chord, and Ka1 a constant. Without "x" or "+", such a word is a move only next to another
    move, or after "played".
    """
    piece, start, takes, target, promoted, check = match.groups()
    if not (takes or check or promoted):
        unsure = piece + target[0] in NOT_SURELY_MOVES or follows(match, LABEL_BEFORE)
        if unsure and not (follows(match, MOVE_BEFORE) or MOVE_AFTER.match(match.string, match.end())):
            return match[0]
    words = [PIECES.get(piece), start.upper(), takes and "takes", target.upper(), PIECES.get(promoted)]
    return " ".join(filter(None, words)) + CHECKS[check]


RULES: tuple[TextRule, ...] = (
    rule(
        "e5 2. Nf3",
        rf"(?<![\w.,/-])(\d{{1,3}})\.(?:\.\.)?\s?(?={MOVE})",
        lambda match: f"{', ' * bool(follows(match, MOVE_ENDS))}{match[1]}, ",
    ),
    rule(
        "Nf3, exd5, e8=Q#",
        r"(?<![\w.'-])(?=[KQRBNa-h][a-h1-8x=]{2})(?=[KQRBN]|.x|.[18]=)([KQRBN]?)([a-h]?[1-8]?)(x?)([a-h][1-8])"
        r"(?:=([QRBN]))?([+#]?)(?![\w+^=-])",
        expand_move,
    ),
    rule("O-O", r"\bO-O(-O)?(?![\w'-])", lambda match: f"castles{' queenside' if match[1] else ''}"),
)
