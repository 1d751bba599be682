"""Rules that clang does not know or that MSL does not share with OpenCL, read off the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.lint.finding import Finding
from tests.lint.tokens import Token, attribute_lists, kernels

# Words that clang accepts in this mode and Metal does not have, or has with another meaning.
_OPENCL_WORDS = frozenset(
    "global local private generic read_only write_only read_write event_t sampler_t queue_t "
    "ndrange_t clk_event_t reserve_id_t pipe half16 float16 float8 half8 int8 int16".split()
)

_LAST_BUFFER = 30  # of a compute kernel's argument table: 31 buffers on every GPU family


def enumerators(files: Mapping[str, Sequence[Token]]) -> dict[str, int]:
    """Return every `name = integer` followed by a comma or brace: the buffer indices of abi.h."""
    values: dict[str, int] = {}
    for tokens in files.values():
        for name, equals, number, end in zip(
            tokens, tokens[1:], tokens[2:], tokens[3:], strict=False
        ):
            if (
                name.kind == "name"
                and equals.text == "="
                and number.kind == "number"
                and number.text.isdigit()
                and end.text in (",", "}")
            ):
                values[name.text] = int(number.text)
    return values


def function_constants(files: Mapping[str, Sequence[Token]]) -> dict[str, int]:
    """Return name -> index of rows `X(index, name)` and of `name [[function_constant(index)]]`."""
    found: dict[str, int] = {}
    for tokens in files.values():
        for i in range(len(tokens) - 5):
            x, opener, index, comma, name, close = tokens[i : i + 6]
            if (x.text, opener.text, comma.text, close.text) == (
                "X",
                "(",
                ",",
                ")",
            ) and index.kind == "number":
                found[name.text] = int(index.text)
        for start, _, attributes in attribute_lists(tokens):
            for a in attributes:
                if a.name == "function_constant" and a.argument and a.argument[0].kind == "number":
                    found[tokens[start - 1].text] = int(a.argument[0].text)
    return found


def check(
    path: str, tokens: Sequence[Token], indices: Mapping[str, int], constants: Mapping[str, int]
) -> list[Finding]:
    """Return what is wrong in one file, given enumerators and function constants of all."""
    return [
        *_words(path, tokens),
        *_literals(path, tokens),
        *_kernel_parameters(path, tokens, indices, constants),
    ]


def _words(path: str, tokens: Sequence[Token]) -> Iterator[Finding]:
    for token in tokens:
        if token.kind != "name":
            continue
        if token.text == "goto":
            yield Finding(path, token.line, "goto", "MSL has no goto")
        elif token.text in _OPENCL_WORDS:
            yield Finding(path, token.line, "opencl-word", f"`{token.text}` is OpenCL, not Metal")


def _literals(path: str, tokens: Sequence[Token]) -> Iterator[Finding]:
    for token in tokens:
        text = token.text.lower()
        if token.kind != "number" or text.startswith("0x"):
            continue
        if ("." in text or "e" in text) and not text.endswith(("f", "h")):
            yield Finding(
                path,
                token.line,
                "float-literal",
                f"`{token.text}` has no suffix: float to Metal but double to the C++ compilers "
                f"that read the same text; write `{token.text}f`",
            )


def _kernel_parameters(
    path: str, tokens: Sequence[Token], indices: Mapping[str, int], constants: Mapping[str, int]
) -> Iterator[Finding]:
    for kernel in kernels(tokens):
        used: dict[int, str] = {}
        for parameter in kernel.parameters:
            lists = list(attribute_lists(parameter))
            if len(lists) != 1:
                yield Finding(
                    path,
                    parameter[0].line,
                    "kernel-parameter",
                    f"parameter `{' '.join(t.text for t in parameter)}` of {kernel.name} "
                    "must have one [[attribute]] list",
                )
                continue
            start, _, attributes = lists[0]
            name = parameter[start - 1].text
            for attribute in attributes:
                argument = " ".join(t.text for t in attribute.argument)
                if attribute.name == "buffer":
                    index = int(argument) if argument.isdigit() else indices.get(argument)
                    if index is None:
                        yield Finding(
                            path,
                            attribute.line,
                            "buffer-index",
                            f"`{argument}` of `{name}` is no integer or enumerator",
                        )
                    elif index > _LAST_BUFFER:
                        yield Finding(
                            path,
                            attribute.line,
                            "buffer-index",
                            f"`{name}` takes buffer {index}; Metal has 0 to {_LAST_BUFFER}",
                        )
                    elif index in used:
                        yield Finding(
                            path,
                            attribute.line,
                            "buffer-index",
                            f"`{name}` takes buffer {index}, which `{used[index]}` of "
                            f"{kernel.name} already has",
                        )
                    else:
                        used[index] = name
                elif attribute.name == "function_constant" and argument not in constants:
                    yield Finding(
                        path,
                        attribute.line,
                        "function-constant",
                        f"`{argument}` of `{name}` is no function constant",
                    )
