"""One spelling per kernel: profilers print the same demangled name in three ways.

Kineto: `void f<4, std::array<char*, 3ul> >(int, g(T&)::{lambda(float)#1})`
Nsight Systems: `void f<(int)4, std::array<char *, (unsigned long)3>>(int, T2, T3)`; `<unnamed>`;
    `[lambda(float) (instance 1)]`
Nsight Compute: as Kineto, without namespaces.

The canonical spelling has no return type, no argument list, no casts in front of literals, no integer suffixes and no
optional blanks. Namespaces stay: they tell vllm::rms_norm_kernel from another library's.
"""

from __future__ import annotations

import re
from functools import lru_cache

_CAST = re.compile(
    r"\((?:bool|char|signed char|unsigned char|short|unsigned short|int|unsigned int|long|unsigned long|long long"
    r"|unsigned long long|size_t)\)(?=-?\w|\()"
)
_SUFFIX = re.compile(r"\b(\d+)(?:[uU][lL]{0,2}|[lL]{1,2}[uU]?)\b")
_ANONYMOUS = re.compile(r"<unnamed>|\{anonymous\}|`anonymous namespace'|unnamed-namespace")
_LAMBDA = re.compile(r"\[lambda(\([^][]*?\))? ?\(instance (\d+)\)\]")
_OPERATOR_CALL = re.compile(r"operator *\( *\)")
_BLANKS = re.compile(r"\s*([<>,*&])\s*")
_CLONE = re.compile(r"(?: *\[clone [^\]]*\]|\.kd)+\Z")
_INNER_RETURN = re.compile(r"(?<=[<,(])void (?=\w)")
_PLAIN = re.compile(r"[\w.$@-]*\Z")


@lru_cache(maxsize=65_536)
def canonical_name(name: str) -> str:
    """The canonical spelling of a demangled kernel name; mangled and plain names come back as they are."""
    if _PLAIN.match(name):
        return name
    text = _CLONE.sub("", _ANONYMOUS.sub("(anonymous namespace)", name.strip()))
    text = _LAMBDA.sub(lambda m: f"{{lambda{m[1] or '()'}#{m[2]}}}", text)
    text = _CAST.sub("", text)
    text = _SUFFIX.sub(r"\1", text)
    text = _OPERATOR_CALL.sub("operator()", text)
    text = _INNER_RETURN.sub("", _BLANKS.sub(r"\1", text))
    return _without_return_type(_without_arguments(text)) or name


def _without_arguments(text: str) -> str:
    """Everything before the argument list: the `(` that closes at the end of the name at bracket depth zero."""
    end = len(text.rstrip())
    if text[:end].endswith(" const"):
        end -= len(" const")
    if end == 0 or text[end - 1] != ")":
        return text
    depth = 0
    for at in range(end - 1, -1, -1):
        if text[at] == ")":
            depth += 1
        elif text[at] == "(":
            depth -= 1
            if depth == 0:
                head = text[:at].rstrip()
                # `(anonymous namespace)` and `operator()` are parts of a name, not its arguments.
                if text.startswith("(anonymous namespace)", at) or head.endswith("operator"):
                    return text
                return head
    return text


def _without_return_type(text: str) -> str:
    """Everything behind the last blank outside brackets: `void f<…>`, `std::enable_if<…, void>::type f<…>`."""
    angles = rounds = 0
    cut = 0
    for at, sign in enumerate(text):
        if sign in "({":
            rounds += 1
        elif sign in ")}":
            rounds -= 1
        elif rounds == 0 and sign == "<":
            angles += 1
        elif rounds == 0 and sign == ">":
            angles -= 1
        elif sign == " " and rounds == 0 and angles == 0 and not text.startswith("const", at + 1):
            cut = at + 1
    return text[cut:] if rounds == 0 and angles == 0 else text.removeprefix("void ")
