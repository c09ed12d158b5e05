"""Make mutants: small changes to a module's source, each of which its tests should notice."""

import ast
import copy
import difflib
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

OPERATORS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """A changed module. Lines count from 1."""

    module: str
    line: int
    change: str
    source: str
    original: str

    @property
    def diff(self) -> str:
        return "\n".join(
            difflib.unified_diff(
                self.original.splitlines(), self.source.splitlines(), "original", "mutant", lineterm="", n=1
            )
        )

    @property
    def key(self) -> str:
        """Identify the mutant by text that stays the same while the module does."""
        return f"{self.module}:{self.line}:{hashlib.sha256(self.source.encode()).hexdigest()[:8]}"


def find_mutants(module: str, source: str) -> list[Mutant]:
    """Return every mutant of a module that compiles, without duplicates, in the order of the source."""
    mutants: dict[str, Mutant] = {}
    for node in mutable_nodes(ast.parse(source)):
        for target, change, replacement in replacements(node):
            text = replaced(source, target, replacement)
            with suppress(SyntaxError):  # a few replacements are not valid in their place
                compile(text, module, "exec")
                mutants.setdefault(text, Mutant(module, target.lineno, change, text, source))
    return sorted(mutants.values(), key=lambda mutant: (mutant.line, mutant.key))


def mutable_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below ``node``. Leave out annotations, imports, docstrings and f-strings (inexact positions)."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom) or not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if hasattr(child, "lineno"):
                yield child
            yield from mutable_nodes(child)


def replacements(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """Yield the changes below a node: the node to replace, the kind of change, and the new source."""
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                changed = copy.deepcopy(node)
                changed.ops[index] = OPERATORS[type(operator)]()
                yield node, "comparison", f"({ast.unparse(changed)})"
        case ast.BinOp() | ast.BoolOp() if type(node.op) in OPERATORS:
            changed = copy.deepcopy(node)
            changed.op = OPERATORS[type(node.op)]()
            yield node, "operator", f"({ast.unparse(changed)})"
        case ast.UnaryOp(op=ast.Not()):
            yield node, "negation", f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool()):
            yield node, "boolean", str(not node.value)
        case ast.Constant(value=int() | float()):
            yield from ((node, "constant", f"({node.value + step})") for step in (1, -1))
        case ast.IfExp():
            yield from ((node, "branch", f"({ast.unparse(branch)})") for branch in (node.body, node.orelse))
        case ast.If() | ast.While() if not isinstance(node.test, ast.Compare | ast.UnaryOp):
            yield node.test, "negation", f"(not {ast.unparse(node.test)})"
        case ast.Return(value=ast.expr()):
            yield node, "return None", "return None"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Expr() | ast.AugAssign() | ast.Raise():
            yield node, "removed statement", "pass"


def replaced(source: str, node: ast.AST, replacement: str) -> str:
    """Replace the text of a node in ``source``. Columns of ``ast`` count bytes of UTF-8."""
    lines = source.encode().splitlines(keepends=True)
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (before + replacement.encode() + after).decode()
