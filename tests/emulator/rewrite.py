"""Rewrites preprocessed MSL into C++: the few constructs that no macro can express.

Kernel bodies stay as they are and no line moves, so that reports name lines of the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

BUILTIN_SOURCES = {
    "thread_position_in_grid": "kEmuThreadPositionInGrid",
    "thread_position_in_threadgroup": "kEmuThreadPositionInThreadgroup",
    "thread_index_in_threadgroup": "kEmuThreadIndexInThreadgroup",
    "threadgroup_position_in_grid": "kEmuThreadgroupPositionInGrid",
    "threadgroups_per_grid": "kEmuThreadgroupsPerGrid",
    "threads_per_grid": "kEmuThreadsPerGrid",
    "threads_per_threadgroup": "kEmuThreadsPerThreadgroup",
    "thread_index_in_simdgroup": "kEmuThreadIndexInSimdgroup",
    "simdgroup_index_in_threadgroup": "kEmuSimdgroupIndexInThreadgroup",
    "simdgroups_per_threadgroup": "kEmuSimdgroupsPerThreadgroup",
    "threads_per_simdgroup": "kEmuThreadsPerSimdgroup",
}

_ATTRIBUTE = re.compile(r"\[\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\]")
_CONSTANT = re.compile(
    r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\s*\(([^()]*)\)\s*\]\]\s*;"
)
_KERNEL = re.compile(r"\[\[\s*kernel\b|\bkernel(?=\s+void\b)")
_INSTANCE = re.compile(
    r"\btemplate\s*\[\[\s*host_name\s*\(\s*((?:\"[^\"]*\"\s*)+)\)\s*\]\]\s*\[\[\s*kernel\s*\]\]"
    r"\s*decltype\s*\("
)
_THREADGROUP_ARRAY = re.compile(
    r"\bthreadgroup\s+(?P<type>\w[\w:<>,\s]*?)\s+(?P<name>\w+)\s*"
    r"(?P<extents>(?:\[[^\[\];]*\]\s*)*);"
)
_SHORT_LITERAL = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?)(bf|h)\b")


class RewriteError(Exception):
    """The source uses a construct that the emulator does not know."""


@dataclass
class _Parameter:
    name: str
    source: str
    index: str = "0"
    space: str = "kEmuNone"
    gate: str | None = None


@dataclass
class _Rewriter:
    text: str
    templates: dict[str, list[_Parameter]] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)

    def run(self) -> str:
        self.text = _SHORT_LITERAL.sub(_short_literal, self.text)
        self.text = _CONSTANT.sub(_function_constant, self.text)
        self._kernels()
        self._instances()
        self.text = _ATTRIBUTE.sub(_blank, self.text)
        self._arrays()
        return self.text

    def _kernels(self) -> None:
        at = 0
        while match := _KERNEL.search(self.text, at):
            if match.group() == "kernel":
                attributes, start = "", match.end()
            else:
                whole = _ATTRIBUTE.match(self.text, match.start())
                if whole is None:
                    raise RewriteError("a [[kernel]] attribute does not end")
                attributes, start = whole.group(1), whole.end()
            at = start
            head = re.compile(r"(?:\s|\bstatic\b|\binline\b)*\bvoid\s+(\w+)\s*\(").match(
                self.text, start
            )
            if head is None:  # an explicit instantiation: handled by itself
                continue
            name = head.group(1)
            end = _closing(self.text, head.end() - 1)
            parameters = _parameters(self.text[head.end() : end], name)
            if match.group() == "kernel":  # an older spelling, no attribute to strip
                self.text = self.text[: match.start()] + " " * 6 + self.text[match.end() :]
            if self.text[: match.start()].rstrip().endswith(">"):
                self.templates[name] = parameters
                continue
            body = self.text.index("{", end)
            body_end = _closing(self.text, body)
            registration = self._register(name, name, parameters, _max_threads(attributes))
            self.text = self.text[: body_end + 1] + registration + self.text[body_end + 1 :]

    def _instances(self) -> None:
        while match := _INSTANCE.search(self.text):
            end = _closing(self.text, match.end() - 1)
            function = self.text[match.end() : end].strip()
            base = function.split("<")[0].strip().split("::")[-1]
            if base not in self.templates:
                raise RewriteError(f"{base}: no kernel template of that name")
            stop = self.text.index(";", end)
            name = "".join(re.findall(r'"([^"]*)"', match.group(1)))
            registration = self._register(name, function, self.templates[base], "0")
            lines = "\n" * self.text.count("\n", match.start(), stop)
            self.text = self.text[: match.start()] + registration + lines + self.text[stop + 1 :]

    def _register(
        self, name: str, function: str, parameters: list[_Parameter], max_threads: str
    ) -> str:
        n = len(self.kernels)
        self.kernels.append(name)
        out = []
        rows = []
        for i, p in enumerate(parameters):
            gate, text = "nullptr", "nullptr"
            if p.gate is not None:
                gate, text = f"&emu_gate_{n}_{i}", f'"{p.gate}"'
                out.append(
                    f"EMU_UNTRACED static bool emu_gate_{n}_{i}() {{ return bool({p.gate}); }}"
                )
            rows.append(f'{{"{p.name}", {p.source}, int({p.index}), {p.space}, {gate}, {text}}}')
        rows.append("{nullptr, kEmuBuffer, 0, kEmuNone, nullptr, nullptr}")
        arguments = "".join(f", ::emu::Argument<{p.source}, int({p.index})>" for p in parameters)
        out.append(f"static const emu_param emu_params_{n}[] = {{{', '.join(rows)}}};")
        out.append(f"using emu_entry_{n} = ::emu::Entry<decltype(&{function})>;")
        out.append(
            f'static const emu_kernel emu_kernel_{n} = {{"{name}", emu_params_{n}, '
            f"emu_entry_{n}::types, {len(parameters)}, unsigned({max_threads}), "
            f"&emu_entry_{n}::template invoke<&{function}{arguments}>}};"
        )
        out.append(
            '__attribute__((used, section("emu_kernels"))) static const emu_kernel* const '
            f"emu_listed_{n} = &emu_kernel_{n};"
        )
        return " " + " ".join(out)

    def _arrays(self) -> None:
        count = 0

        def replace(match: re.Match[str]) -> str:
            nonlocal count
            name, extents = match["name"], " ".join(match["extents"].split())
            alias = f"emu_array_{name}"
            text = (
                f"using {alias} = {match['type']}{extents}; "
                f"{alias}& {name} = *static_cast<{alias}*>(emu_threadgroup_array({count}, "
                f'"{name}", sizeof({alias}), ::emu::element_size<{alias}>(), alignof({alias})));'
            )
            count += 1
            return text + "\n" * (match.group().count("\n") - text.count("\n"))

        self.text = _THREADGROUP_ARRAY.sub(replace, self.text)


def rewrite(text: str) -> str:
    """Turn preprocessed MSL into C++ for the shim."""
    rewriter = _Rewriter(text)
    out = rewriter.run()
    if not rewriter.kernels:
        raise RewriteError("no kernel found")
    return out + "\nEMU_MODULE\n"


def _blank(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


def _short_literal(match: re.Match[str]) -> str:
    return f"{'half' if match.group(2) == 'h' else 'bfloat'}({match.group(1)}f)"


def _function_constant(match: re.Match[str]) -> str:
    kind, name, index = match.groups()
    lines = "\n" * match.group().count("\n")
    return f"EMU_FUNCTION_CONSTANT({kind}, {name}, {index.strip()}){lines}"


def _closing(text: str, at: int) -> int:
    """Index of the bracket that closes the one at `at`; strings are skipped."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    stack = []
    i = at
    while i < len(text):
        c = text[i]
        if c == '"':
            i = text.index('"', i + 1)
            while text[i - 1] == "\\":
                i = text.index('"', i + 1)
        elif c in pairs:
            stack.append(pairs[c])
        elif stack and c == stack[-1]:
            stack.pop()
            if not stack:
                return i
        i += 1
    raise RewriteError(f"unbalanced {text[at]!r}")


def _split(text: str) -> list[str]:
    """Split at commas outside every bracket."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def _parameters(text: str, kernel: str) -> list[_Parameter]:
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    return [_parameter(part, kernel) for part in _split(text)]


def _parameter(text: str, kernel: str) -> _Parameter:
    declaration = _ATTRIBUTE.sub(" ", text)
    name = re.findall(r"\w+", declaration)[-1]
    attributes: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(text):
        for item in _split(match.group(1)):
            key, _, rest = item.strip().partition("(")
            attributes[key.strip()] = rest.rsplit(")", 1)[0].strip()
    where = f"{kernel}: argument {name}"
    if "buffer" in attributes:
        space = next((s for s in ("device", "constant") if re.search(rf"\b{s}\b", text)), None)
        if space is None:
            raise RewriteError(f"{where}: a buffer is in device or constant memory")
        return _Parameter(
            name,
            "kEmuBuffer",
            attributes["buffer"],
            f"kEmu{space.capitalize()}",
            attributes.get("function_constant"),
        )
    for attribute, source in BUILTIN_SOURCES.items():
        if attribute in attributes:
            return _Parameter(name, source)
    known = ", ".join(["buffer", *BUILTIN_SOURCES])
    raise RewriteError(f"{where}: no attribute the emulator knows; it knows {known}")


def _max_threads(attributes: str) -> str:
    match = re.search(r"max_total_threads_per_threadgroup\s*\(", attributes)
    if match is None:
        return "0"
    return attributes[match.end() : _closing(attributes, match.end() - 1)]
