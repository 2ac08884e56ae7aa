"""Builds new expressions around existing ones, which keep their formatting."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

ATOMS = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.Integer,
    cst.Float,
    cst.List,
    cst.Dict,
    cst.Set,
)


def around(text: str, *nodes: cst.BaseExpression) -> cst.BaseExpression:
    """Parse ``text`` and substitute ``nodes`` for the names NODE0, NODE1 …"""
    expression: cst.CSTNode = cst.parse_expression(text)
    for index, node in enumerate(nodes):
        replaced = m.replace(expression, m.Name(f"NODE{index}"), node)
        assert isinstance(replaced, cst.BaseExpression)
        expression = replaced
    assert isinstance(expression, cst.BaseExpression)
    return expression


def atom(node: cst.BaseExpression) -> cst.BaseExpression:
    """``node``, in parentheses if an adjacent operator or dot would bind into it."""
    if isinstance(node, ATOMS) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def shown(node: cst.CSTNode) -> str:
    """``node`` as one line of text, for display."""
    return " ".join(cst.Module([]).code_for_node(node).split())
