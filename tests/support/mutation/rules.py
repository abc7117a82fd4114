"""The places that are never mutated, because a change there means nothing.

Each rule is a function of two nodes of the syntax tree, a node and its parent. A place is left out
if a rule holds for its node or for any node around it. `RULES` maps each rule to the words that
document it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from parso.tree import BaseNode, NodeOrLeaf

Rule = Callable[[NodeOrLeaf, NodeOrLeaf], bool]
"""A function that says whether changes inside `child` mean nothing, as a part of `parent`."""

LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
LOG_FUNCTIONS = frozenset({"log_event", "_log_event"})
TYPING_DECORATORS = frozenset({"override", "overload", "final", "runtime_checkable"})
DECLARING_ARGUMENTS = frozenset({"frozen", "slots"})


def in_annotation(child: NodeOrLeaf, parent: NodeOrLeaf) -> bool:
    if parent.type == "annassign":
        return child is parent.children[1]
    if parent.type == "param":
        return child is parent.annotation or child.type == "tfpdef"
    if parent.type == "funcdef":
        return child is parent.annotation
    return False


def in_type_alias(child: NodeOrLeaf, parent: NodeOrLeaf) -> bool:
    """Return whether a node is in the value of a type alias.

    An alias is an assignment outside of functions to a name that begins with a capital letter and
    has lower-case letters as well. (The name of a constant has none.)
    """
    if parent.type != "expr_stmt" or child is parent.children[0]:
        return False
    name = parent.children[0]
    outside = all(node.type not in ("funcdef", "lambdef") for node in ancestors(parent))
    return (
        outside
        and name.type == "name"
        and name.value.lstrip("_")[:1].isupper()
        and not name.value.isupper()
    )


def in_typing_decorator(child: NodeOrLeaf, parent: NodeOrLeaf) -> bool:
    return child.type == "decorator" and last_name(child) in TYPING_DECORATORS


def in_dataclass_declaration(child: NodeOrLeaf, parent: NodeOrLeaf) -> bool:
    return (
        parent.type == "argument"
        and parent.children[0].type == "name"
        and parent.children[0].value in DECLARING_ARGUMENTS
        and any(node.type == "decorator" for node in ancestors(parent))
    )


def under_type_checking(child: NodeOrLeaf, parent: NodeOrLeaf) -> bool:
    return parent.type == "if_stmt" and child in parent.children[:4] and is_type_checking(parent)


def is_type_checking(statement: NodeOrLeaf) -> bool:
    return str(statement.children[1].get_code()).strip() == "TYPE_CHECKING"


def in_repr(child: NodeOrLeaf, parent: NodeOrLeaf) -> bool:
    return parent.type == "funcdef" and parent.name.value == "__repr__"


def in_all(child: NodeOrLeaf, parent: NodeOrLeaf) -> bool:
    return parent.type == "expr_stmt" and parent.children[0].get_code().strip() == "__all__"


def in_log_call(child: NodeOrLeaf, parent: NodeOrLeaf) -> bool:
    if parent.type != "trailer" or parent.children[0].value != "(":
        return False
    name = called(parent)
    if name in LOG_FUNCTIONS:
        return True
    before = parent.get_previous_sibling()
    holder = before.get_previous_sibling() if before is not None else None
    return name in LOG_METHODS and holder is not None and "log" in holder.get_code().lower()


def in_error_text(child: NodeOrLeaf, parent: NodeOrLeaf) -> bool:
    """Return whether a node is an f-string within a `raise`, or in a call of a class `...Error`."""
    if child.type != "fstring":
        return False
    return any(
        node.type == "raise_stmt"
        or (node.type == "trailer" and (called(node) or "").endswith("Error"))
        for node in ancestors(child)
    )


RULES: dict[Rule, str] = {
    in_annotation: "annotations of parameters, results and variables",
    in_type_alias: "aliases of types",
    in_typing_decorator: "decorators for type checkers only, such as `@override`",
    in_dataclass_declaration: "`frozen` and `slots` of a dataclass",
    under_type_checking: "`if TYPE_CHECKING` and what is imported there",
    in_repr: "the body of a `__repr__`",
    in_all: "the list `__all__`",
    in_log_call: "the arguments of calls that log",
    in_error_text: "the text of an error",
}
"""The rules, each with words that document it.

They apply to places within something. Docstrings and other strings have no places at all.
"""


def is_meaningless(node: NodeOrLeaf) -> bool:
    """Return whether no change of this node can have a meaning."""
    if node.type == "if_stmt" and is_type_checking(node):
        return True  # The statement itself. For nodes inside of it, `under_type_checking` holds.
    return any(
        rule(child, around)
        for child, around in pairwise((node, *ancestors(node)))
        for rule in RULES
    )


def ancestors(node: NodeOrLeaf) -> Iterator[BaseNode]:
    around = node.parent
    while around is not None:
        yield around
        around = around.parent


def called(trailer: NodeOrLeaf | None) -> str | None:
    """Return the last name of the function that is called with these parentheses, or None."""
    before = trailer.get_previous_sibling() if trailer is not None else None
    return last_name(before) if before is not None else None


def last_name(node: NodeOrLeaf) -> str | None:
    """Return the last name in an expression `a.b.c`, or in a decorator, or None if it has none."""
    if node.type == "name":
        return str(node.value)
    children = getattr(node, "children", ())
    if node.type == "decorator":
        return last_name(children[1])
    names = [last_name(child) for child in children if child.type in ("name", "trailer")]
    return next((name for name in reversed(names) if name), None)
