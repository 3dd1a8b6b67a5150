"""Reads words as a POSIX shell, or GRUB's, would: quotes, escapes, known variables. Runs nothing: what it cannot know is a hole."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HOLE = "\0"  # stands for a part that only the running shell would know
MAX_TEXT = 1 << 19
MAX_EXPANDED = 1 << 19  # a script can double a variable in every line
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLAIN = re.compile(r"[^\\'\"`$\s;&|]+")
_QUOTED = re.compile(r"[^\"\\$`]+")
_DEFAULTED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(:?[-+])(.*)", re.ASCII | re.DOTALL)
_OPERATORS = ";&|\n"


@dataclass(frozen=True, slots=True)
class Command:
    """The words of one command, unquoted, and the operators before and after it (`;`, newline, `&&`, `||`, `|`, `&`)."""

    words: tuple[str, ...]
    before: str
    after: str


def commands(text: str, variables: Mapping[str, str]) -> Iterator[Command]:
    """Yield the commands of a script in order; variables are looked up when the words are read, so the caller may set them.

    Raises ValueError on a quote that is not closed, and on a text too long to be a script of settings.
    """
    if len(text) > MAX_TEXT or HOLE in text:
        raise ValueError("not a script of settings")
    lexer = _Lexer(text, variables)
    before = "\n"
    while lexer.at < len(text):
        words, after = lexer.command()
        if words:
            yield Command(words, before, after)
        before = after


class _Lexer:
    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        self.text = text
        self.at = 0
        self.variables = variables
        self.expanded = 0

    def command(self) -> tuple[tuple[str, ...], str]:
        words: list[str] = []
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in _OPERATORS:
                twice = self.text[self.at : self.at + 2]
                operator = twice if twice in {"&&", "||", ";;"} else letter
                self.at += len(operator)
                return tuple(words), operator
            if letter.isspace():
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif letter == "#":
                end = self.text.find("\n", self.at)
                self.at = end if end >= 0 else len(self.text)
            else:
                words.append(self.word())
        return tuple(words), "\n"

    def word(self) -> str:
        parts: list[str] = []
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter.isspace() or letter in _OPERATORS:
                break
            if letter == "'":
                parts.append(self.until("'"))
            elif letter == '"':
                parts.append(self.double())
            elif letter == "\\":
                parts.append(self.text[self.at + 1 : self.at + 2].replace("\n", ""))
                self.at += 2
            elif letter in "$`":
                parts.append(self.bounded(self.expansion()))
            else:
                plain = _PLAIN.match(self.text, self.at)
                parts.append(plain[0] if plain else letter)
                self.at += len(parts[-1])
        return "".join(parts)

    def until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise ValueError("a quote that is not closed")
        found = self.text[self.at + 1 : end]
        self.at = end + 1
        return found

    def double(self) -> str:
        parts: list[str] = []
        self.at += 1
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == '"':
                self.at += 1
                return "".join(parts)
            if letter == "\\":
                escaped = self.text[self.at + 1 : self.at + 2]
                parts.append({"\n": ""}.get(escaped, escaped if escaped in '\\"$`' else "\\" + escaped))
                self.at += 2
            elif letter in "$`":
                parts.append(self.bounded(self.expansion()))
            else:
                plain = _QUOTED.match(self.text, self.at)
                parts.append(plain[0] if plain else letter)
                self.at += len(parts[-1])
        raise ValueError("a quote that is not closed")

    def bounded(self, value: str) -> str:
        self.expanded += len(value)
        if self.expanded > MAX_EXPANDED:
            raise ValueError("variables that grow without end")
        return value

    def expansion(self) -> str:
        if self.text[self.at] == "`":
            self.until("`")
            return HOLE
        self.at += 1
        following = self.text[self.at : self.at + 1]
        if following == "(":
            self.skip_parentheses()
            return HOLE
        if following == "{":
            return self.braced(self.until("}"))
        name = _NAME.match(self.text, self.at)
        if name is None:
            self.at += 1 if following and following in "?#$!@*-0123456789" else 0
            return HOLE if following and following in "?#$!@*-0123456789" else "$"
        self.at = name.end()
        return self.variables.get(name[0], HOLE)

    def skip_parentheses(self) -> None:
        depth = 0
        while self.at < len(self.text):
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            self.at += 1
            if depth == 0:
                return
        raise ValueError("a parenthesis that is not closed")

    def braced(self, inside: str) -> str:
        if _NAME.fullmatch(inside):
            return self.variables.get(inside, HOLE)
        found = _DEFAULTED.fullmatch(inside)
        if found is None or found[1] not in self.variables:
            return HOLE
        name, how, other = found.groups()
        value = self.variables[name]
        there = bool(value) or not how.startswith(":")
        chosen = other if how.endswith("+") else value
        if how.endswith("+") and not there:
            return ""
        if how.endswith("-") and not there:
            chosen = other
        # what stands within may expand, too: only the variable itself is looked up
        return re.sub(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", lambda part: self.variables.get(part[1], HOLE), chosen)
