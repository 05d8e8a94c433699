"""The small changes that mutation testing makes to a module, each by its one rule.

A mutant is the syntax tree of a module with one node exchanged, or one element of a list taken out. Everything that is
executed is mutated: functions, decorated or not, validators, decorators, tables of constants, regular expressions,
default arguments. What is left alone, and why:

- annotations, docstrings, `__all__` and the type arguments of `cast` and `Literal`: they mean nothing at run time;
- `frozenset` around a set of which each element is written there: nobody changes it;
- the text of an error, which is for people (a string with two words in a row, or an f-string with a space, given to an
  exception or to a helper that raises or makes one): no caller may match on it. Reasons, codes and the names of members
  are mutated.

The rules are honest rather than many: a change that any import would notice is not made where that can be known, such
as a regular expression that does not compile.
"""

import ast
import copy
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

from attrs import evolve, field, frozen

from mutation.regexes import regexes


@frozen
class Edit:
    """Put `replacement` where `parent` has the node: in the attribute `field`, at `index` if that is a list.

    Without a replacement an element is taken out of its list, and an attribute becomes None.
    """

    parent: ast.AST
    field: str
    index: int | None
    replacement: ast.AST | None

    def apply(self) -> None:
        """Change the tree; once, as it may take an element out."""
        if self.index is None:
            setattr(self.parent, self.field, self.replacement)
        elif self.replacement is None:
            del getattr(self.parent, self.field)[self.index]
        else:
            getattr(self.parent, self.field)[self.index] = self.replacement


@frozen
class Mutant:
    """One change of a module; `name` says which, and stays the same while the code around it changes."""

    name: str
    line: int
    edit: Edit = field(repr=False, eq=False)


def mutants(tree: ast.Module) -> list[Mutant]:
    """Every mutant of a module, in the order of the source. To have the module mutated, `apply` one `edit`."""
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for mutant in _Walk(tree).module():
        seen[mutant.name] = seen.get(mutant.name, 0) + 1
        again = f" #{seen[mutant.name]}" if seen[mutant.name] > 1 else ""
        found.append(evolve(mutant, name=mutant.name + again))
    return found


# --- what a node can be exchanged for --------------------------------------------------------------

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OF_NUMBERS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Eq: (ast.LtE, ast.GtE),
    ast.NotEq: (ast.Lt, ast.Gt),
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_OTHER_NAMES: Final = {
    "all": "any",
    "any": "all",
    "endswith": "startswith",
    "fullmatch": "match",
    "match": "fullmatch",
    "max": "min",
    "min": "max",
    "search": "match",
    "startswith": "endswith",
    "lstrip": "rstrip",
    "rstrip": "lstrip",
    "strip": "rstrip",
    "partition": "rpartition",
    "rpartition": "partition",
}
# Methods and functions that give something much like what they are given
_NEARLY_NOTHING: Final = {
    *("casefold", "lower", "upper", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace"),
    *("MappingProxyType", "dict", "frozenset", "list", "set", "sorted", "tuple", "evolve", "abs", "bool", "int", "str"),
}
_STRIPS: Final = {"strip", "lstrip", "rstrip", "frozenset"}
_ORDERS: Final = {"little": "big", "big": "little"}


def _comparisons(node: ast.Compare) -> Iterator[ast.AST]:
    sides = [node.left, *node.comparators]
    for index, operator in enumerate(node.ops):
        others = _COMPARISONS[type(operator)]
        if any(_is_number(side) for side in sides[index : index + 2]):
            others += _OF_NUMBERS.get(type(operator), ())
        for other in others:
            ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield ast.Compare(node.left, ops, node.comparators)


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "len"
    return isinstance(node, ast.Constant) and type(node.value) is int


def _booleans(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    for index in range(len(node.values)):
        rest = node.values[:index] + node.values[index + 1 :]
        yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _arithmetic(node: ast.BinOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Add):
        yield node.left
        yield node.right
    if other := _ARITHMETIC.get(type(node.op)):
        yield ast.BinOp(node.left, other(), node.right)


def _signs(node: ast.UnaryOp) -> Iterator[ast.AST]:
    yield node.operand


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, str) and value in _ORDERS:
        yield ast.Constant(_ORDERS[value])
    elif isinstance(value, str):
        yield ast.Constant(value[1:] if value else "other")
    elif isinstance(value, bytes):
        yield ast.Constant(value[1:] if value else b"other")


def _others(node: ast.Name | ast.Attribute) -> Iterator[ast.AST]:
    name = node.id if isinstance(node, ast.Name) else node.attr
    if other := _OTHER_NAMES.get(name):
        yield ast.Name(other, node.ctx) if isinstance(node, ast.Name) else ast.Attribute(node.value, other, node.ctx)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in _NEARLY_NOTHING:
        yield function.value
    elif isinstance(function, ast.Name) and function.id in _NEARLY_NOTHING and node.args:
        yield from () if isinstance(node.args[0], ast.Set) else node.args[:1]
    if isinstance(function, ast.Attribute | ast.Name) and node.args and isinstance(node.args[-1], ast.Constant):
        value = node.args[-1].value
        name = function.attr if isinstance(function, ast.Attribute) else function.id
        if name in _STRIPS and isinstance(value, str | bytes) and len(value) > 1:
            yield ast.Call(function, [*node.args[:-1], ast.Constant(value[:-1])], node.keywords)
    if ast.unparse(function) == "re.compile" and len(node.args) > 1:
        yield ast.Call(function, node.args[:1], [])


def _dictionaries(node: ast.Dict) -> Iterator[ast.AST]:
    for index in range(len(node.keys)):
        keys = node.keys[:index] + node.keys[index + 1 :]
        yield ast.Dict(keys, node.values[:index] + node.values[index + 1 :])
    for index, (first, second) in enumerate(zip(node.values, node.values[1:], strict=False)):
        if None not in node.keys[index : index + 2] and ast.dump(first) != ast.dump(second):
            yield ast.Dict(node.keys, [*node.values[:index], second, first, *node.values[index + 2 :]])


def _either(node: ast.IfExp) -> Iterator[ast.AST]:
    yield node.body
    yield node.orelse


_EXPRESSIONS: Final[dict[type[ast.AST], Callable[[Any], Iterator[ast.AST]]]] = {
    ast.Compare: _comparisons,
    ast.BoolOp: _booleans,
    ast.BinOp: _arithmetic,
    ast.UnaryOp: _signs,
    ast.Constant: _constants,
    ast.Call: _calls,
    ast.Dict: _dictionaries,
    ast.IfExp: _either,
}


def _negated(test: ast.expr) -> Iterator[ast.AST]:
    # The others turn round by a rule of their own.
    if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), test)


# --- the walk ----------------------------------------------------------------------------------------


class _Walk:
    """Goes through a module and finds its mutants."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.regexes = _named_regexes(tree)
        self.refusers = _refusers(tree)
        self.texts = _named_texts(tree, self.refusers)
        self.parents: list[ast.AST] = []
        self.scope: list[str] = []

    def module(self) -> Iterator[Mutant]:
        yield from self.children(self.tree)

    def children(self, node: ast.AST) -> Iterator[Mutant]:
        """The mutants below `node`."""
        self.parents.append(node)
        named = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        if named:
            self.scope.append(cast("ast.FunctionDef", node).name)
        for name, value in ast.iter_fields(node):
            places = [(value, None)] if isinstance(value, ast.AST) else _elements(value)
            for child, index in places:
                if not self.is_left_alone(child, node, name, index):
                    yield from self.node(child, node, name, index)
        if named:
            self.scope.pop()
        self.parents.pop()

    def node(self, node: ast.AST, parent: ast.AST, name: str, index: int | None) -> Iterator[Mutant]:
        """The mutants of `node` and those below it."""
        for replacement in self.replacements(node, parent, name):
            yield self.mutant(node, Edit(parent, name, index, replacement))
        if self.can_go(node, parent, name):
            yield self.mutant(node, Edit(parent, name, index, None))
        yield from self.children(node)

    def replacements(self, node: ast.AST, parent: ast.AST, name: str) -> Iterator[ast.AST]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and self.is_regex():
            whole = not isinstance(parent, ast.JoinedStr)
            yield from (ast.Constant(text) for text in regexes(node.value, whole=whole))
        elif isinstance(node, ast.Name | ast.Attribute):
            yield from _others(node) if name == "func" else ()
        elif find := _EXPRESSIONS.get(type(node)):
            yield from find(node)
        if isinstance(node, ast.expr) and name in ("test", "ifs") and not isinstance(parent, ast.IfExp):
            yield from _negated(node)
        if name == "decorator_list" and ast.unparse(node).partition("(")[0] == "frozen":
            given = node.keywords if isinstance(node, ast.Call) else []
            yield ast.Call(ast.Name("frozen", ast.Load()), [], [*given, ast.keyword("frozen", ast.Constant(False))])
        if isinstance(node, ast.Constant) and node.value is None and self.is_default(parent, name):
            yield ast.Constant(0)
        if name == "iter" and isinstance(parent, ast.For):
            yield ast.Tuple([], ast.Load())
        if isinstance(node, ast.stmt):
            yield from self.statements(node, parent)

    def statements(self, node: ast.stmt, parent: ast.AST) -> Iterator[ast.AST]:
        """A statement goes, or returns nothing."""
        if isinstance(node, ast.Return):
            if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
                yield ast.Return(ast.Constant(None))
            if not isinstance(parent, ast.FunctionDef):
                yield ast.Pass()
        elif isinstance(node, _CAN_GO) or (isinstance(node, ast.Assign) and self.has_been_assigned(node)):
            yield ast.Pass()
        elif isinstance(node, ast.Continue):
            yield ast.Break()
        elif isinstance(node, ast.Break):
            yield ast.Continue()

    def has_been_assigned(self, node: ast.Assign) -> bool:
        """Whether the code after the assignment has a value without it: else it would fail on the name alone."""
        [target, *_] = node.targets
        if isinstance(target, ast.Attribute | ast.Subscript):
            return True
        function = next((above for above in reversed(self.parents) if isinstance(above, ast.FunctionDef)), None)
        if not isinstance(target, ast.Name) or function is None:
            return False
        before = [name for name in ast.walk(function) if isinstance(name, ast.arg) and name.arg == target.id]
        stores = [name for name in ast.walk(function) if isinstance(name, ast.Name) and name.id == target.id]
        return bool(before) or any(isinstance(name.ctx, ast.Store) and name.lineno < node.lineno for name in stores)

    def can_go(self, node: ast.AST, parent: ast.AST, name: str) -> bool:
        """Whether `node` can simply be left out."""
        if name == "decorator_list":
            return True
        if isinstance(node, ast.keyword):
            return node.arg is not None
        if name == "elts" and isinstance(parent, ast.Tuple | ast.List | ast.Set):
            loaded = not isinstance(parent, ast.Tuple | ast.List) or isinstance(parent.ctx, ast.Load)
            return loaded and len(parent.elts) > 1 and not isinstance(self.parents[-2], ast.Subscript)
        return isinstance(parent, ast.Slice)

    def is_default(self, parent: ast.AST, name: str) -> bool:
        if isinstance(parent, ast.arguments):
            return name in ("defaults", "kw_defaults")
        return isinstance(parent, ast.AnnAssign) and isinstance(self.parents[-2], ast.ClassDef)

    def is_regex(self) -> bool:
        for parent in reversed(self.parents):
            if isinstance(parent, ast.Call):
                return ast.unparse(parent.func) == "re.compile"
            if isinstance(parent, ast.AnnAssign | ast.Assign):
                return _target(parent) in self.regexes
        return False

    def is_left_alone(self, node: ast.AST, parent: ast.AST, name: str, index: int | None) -> bool:
        """What means nothing at run time, and the text of an error."""
        if name in ("annotation", "returns", "format_spec", "ctx", "type_comment") or isinstance(node, ast.alias):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return True  # a docstring, or the dots of a Protocol
        if isinstance(node, ast.AnnAssign | ast.Assign) and (_target(node) == "__all__" or _is_alias(node)):
            return True
        if isinstance(parent, ast.Call) and ast.unparse(parent.func) == "cast" and index == 0:
            return True
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            return True
        return _is_prose(node) and self.is_told(parent)

    def is_told(self, parent: ast.AST) -> bool:
        if isinstance(parent, ast.Call):
            raised = isinstance(self.parents[-2], ast.Raise)
            return raised or _callee(parent) in self.refusers
        return isinstance(parent, ast.Assign) and _target(parent) in self.texts

    # --- names of mutants ---

    def mutant(self, node: ast.AST, edit: Edit) -> Mutant:
        where = ".".join(self.scope) or self.module_level(node)
        shown = self.context(node)
        if shown is edit.parent and edit.field == "decorator_list":
            shown = node
        before = _line(shown)
        if shown is node:
            after = "" if edit.replacement is None else _line(edit.replacement)
        else:
            after = _line(_edited(shown, edit))
        if edit.field == "decorator_list":
            name = cast("ast.FunctionDef", edit.parent).name
            where, before = ".".join([*self.scope[:-1], name]), f"@{before}"
        before, after = _shortened(before, after)
        return Mutant(f"{where}: {before} -> {after or 'nothing'}", getattr(node, "lineno", 0), edit)

    def module_level(self, node: ast.AST) -> str:
        """The constant that `node` belongs to."""
        statement = [*self.parents, node][1]
        return _target(statement) if isinstance(statement, ast.Assign | ast.AnnAssign) else "module"

    def context(self, node: ast.AST) -> ast.AST:
        """The piece of code around `node` that is long enough to be recognised, within one simple statement."""
        shown = node
        for parent in reversed(self.parents):
            short = len(_line(shown)) < 24 or isinstance(shown, ast.keyword | ast.Slice)
            if not isinstance(parent, _SIMPLE) or not short:
                break
            shown = parent
        return shown


_CAN_GO: Final = (ast.Raise, ast.AugAssign, ast.Delete, ast.Expr, ast.Assert)
# What a name of a mutant may show of the code around it
_SIMPLE: Final = (
    *(ast.expr, ast.keyword, ast.comprehension, ast.arguments, ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign),
    *(ast.Raise, ast.Expr),
)


def _elements(value: object) -> Sequence[tuple[ast.AST, int]]:
    if not isinstance(value, list):
        return ()
    return [(child, index) for index, child in enumerate(value) if isinstance(child, ast.AST)]


def _edited(tree: ast.AST, edit: Edit) -> ast.AST:
    """A copy of `tree` with the edit made."""
    memo: dict[int, Any] = {}
    copied = copy.deepcopy(tree, memo)
    evolve(edit, parent=memo[id(edit.parent)]).apply()
    return copied


def _line(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())


def _shortened(before: str, after: str) -> tuple[str, str]:
    """Both without what they share at a distance from where they differ."""
    if len(before) < 90:
        return before, after
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    left, right = max(0, start - 25), max(0, end - 25)
    return tuple(  # type: ignore[return-value] # two of two
        ("…" if left else "") + text[left : len(text) - right] + ("…" if right else "") for text in (before, after)
    )


# --- what a module is made of --------------------------------------------------------------------------


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def _is_alias(node: ast.Assign | ast.AnnAssign) -> bool:
    """Whether the assignment names a type, for the type checker."""
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.annotation) == "TypeAlias"
    head = ast.unparse(node.value).partition("[")[0].partition("(")[0]
    return head in {"Literal", "tuple", "TypeVar", "NewType", "Callable", "Generator"} and (
        "[" in ast.unparse(node.value) or head in {"TypeVar", "NewType"}
    )


def _callee(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def _is_prose(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return any(" " in str(piece.value) for piece in node.values if isinstance(piece, ast.Constant))
    if isinstance(node, ast.IfExp):
        return _is_prose(node.body) and _is_prose(node.orelse)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_PROSE.search(node.value))


_PROSE: Final = re.compile(r"[A-Za-z;]{2,}:? [A-Za-z]|[A-Za-z] [A-Za-z]{2,}|: [a-z]+ [a-z]|^is ")


def _refusers(tree: ast.Module) -> set[str]:
    """The errors that a module imports, and its functions that raise or make them."""
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith(".errors")
        for alias in node.names
    }
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns is not None]
    return names | {node.name for node in functions if ast.unparse(node.returns or node) in {*names, "NoReturn"}}


def _named_texts(tree: ast.Module, refusers: set[str]) -> set[str]:
    """The variables that are given to an error."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _callee(node) in refusers]
    return {name.id for call in calls for value in call.args for name in ast.walk(value) if isinstance(name, ast.Name)}


def _named_regexes(tree: ast.Module) -> set[str]:
    """The constants that regular expressions are made of, and those that hold them."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile":
            names |= {name.id for name in ast.walk(node.args[0]) if isinstance(name, ast.Name)}
    return names
