"""Translates nvcc's intermediate code (PTX) to C++, so that the emulator runs what nvcc compiles. Not a test.

An instruction becomes one statement, a register becomes a variable, and a jump stays a jump. The functions of
tests/native/cuda_emulator/ptx.h do the work of instructions. Instructions that the library's kernels do not need raise
an error.
"""

import re
from collections.abc import Callable, Iterator

_TYPES = {
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    "f32": "float",
    "f64": "double",
    "pred": "bool",
}
_SPECIAL = {
    "%tid.x": "machine.thread()",
    "%ctaid.x": "machine.block()",
    "%ntid.x": "machine.threads()",
    "%nctaid.x": "machine.blocks()",
    "%laneid": "lane(machine)",
    "%nsmid": "2",
}
# Instructions with one type, whose operands and result have this type.
_PLAIN = {"add", "sub", "min", "max", "abs", "neg", "not", "and", "or", "xor", "div", "rem", "fma", "rcp", "sqrt"}
_PLAIN |= {"copysign", "brev"}
# Qualifiers without an effect here: roundings that are the host's, and orders of memory accesses between threads.
_IGNORED = {"rn", "lo", "uni", "relaxed", "gpu", "volatile", "sync", "nc", "to", "aligned", "weak"}
_SPACES = {"global", "shared", "local", "param"}

_FUNCTION = re.compile(
    r"^(?:\.visible |\.weak )*\.(entry|func)\s+(?:\(([^)]*)\)\s*)?(\w+)\s*\(([^)]*)\)([^{;]*)\{", re.MULTILINE
)
_REGISTERS = re.compile(r"\.reg \.(\w+)\s+%?(\w+)(?:<(\d+)>)?")
_ARRAY = re.compile(r"\.(?:local|param)(?: \.align \d+)? \.(\w+)\s+(\w+)(?:\[(\d+)\])?")
_INSTRUCTION = re.compile(r"(?:@(!?)%(\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)


def translate(ptx: str, expected: str = "") -> tuple[str, list[str]]:
    """Return C++ code, and the names of its kernels in the order of its array ``kernels``.

    Args:
        ptx: The intermediate code of a unit.
        wanted: A regular expression that the names of the kernels must contain.
    """
    text = re.sub(r"//.*|^\s*\.(?:loc|file|pragma)\b.*", "", ptx, flags=re.MULTILINE)
    text = re.sub(r"\{([^{};]*)\}", r"<\1>", text)  # lists of registers; other braces contain semicolons
    shared = re.findall(r"\.extern \.shared \.align \d+ \.b8 (\w+)\[\];", text)
    heads, bodies, kernels = [], [], []
    for kind, result, name, parameters, body in _functions(text):
        if kind == "entry" and not re.search(expected, name):
            continue
        names = [one.split("[")[0].split()[-1] for one in parameters.split(",") if one.strip()]
        if kind == "entry":
            kernels.append(name)
            head = f"static void {name}(const Machine& machine, unsigned char* const* parameters)"
            begin = [f"unsigned char* const {each} = parameters[{i}];" for i, each in enumerate(names)]
        else:
            given = [one.split()[-1] for one in result.split(",") if one.strip()] + names
            head = f"static void {name}(const Machine& machine, {', '.join('unsigned char* ' + one for one in given)})"
            begin = []
        heads.append(f"{head};")
        bodies.append("\n".join([f"{head} {{", *begin, *_body(body), "}"]))
    constants = [f"constexpr uint32_t {name} = 0;" for name in shared]  # its address in the space of shared memory
    table = f'extern "C" const Replacement kernels[] = {{{", ".join(kernels)}}};'
    return "\n".join(['#include "ptx.h"', *constants, *heads, *bodies, table, ""]), kernels


def _functions(text: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield kind, results, name, parameters and body of every function."""
    for match in _FUNCTION.finditer(text):
        depth, end = 1, match.end()
        while depth > 0:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield match[1], match[2] or "", match[3], match[4], text[match.end() : end - 1]


def _body(text: str) -> Iterator[str]:
    declared: list[str] = []
    code: list[str] = []
    depth = 0
    for part in re.findall(r"\$\w+:|[{}]|[^;{}:$]+(?:\$\w+[^;{}:$]*)*;", text):
        statement = " ".join(part.rstrip(";").split())
        if part in "{}":
            code.append(part)
            depth += 1 if part == "{" else -1
        elif part.endswith(":"):
            code.append(f"{part[1:]}")
        elif registers := _REGISTERS.fullmatch(statement):
            kind, name, count = registers.groups()
            names = [name] if count is None else [f"{name}{i}" for i in range(int(count))]
            # Jumps may not pass declarations.
            (code if depth else declared).append(f"{_TYPES[kind]} {', '.join(f'{one}{{}}' for one in names)};")
        elif array := _ARRAY.fullmatch(statement):
            kind, name, count = array.groups()
            size = int(count or 1) * (1 if kind == "b8" else int(kind[1:]) // 8)
            (declared if name.startswith("__local") else code).append(f"alignas(16) unsigned char {name}[{size}];")
        elif statement:
            code.append(_statement(statement))
    return iter(declared + code)


def _statement(text: str) -> str:
    match = _INSTRUCTION.fullmatch(text)
    assert match, text
    inverted, guard, opcode, operands = match.groups()
    try:
        code = _instruction(opcode.split("."), _split(operands))
    except (KeyError, ValueError, IndexError) as error:
        raise NotImplementedError(f"this instruction has no translation: {text}") from error
    return f"if ({'!' if inverted else ''}{guard}) {{ {code} }}" if guard else code


def _split(operands: str) -> list[str]:
    """Split operands at commas outside of brackets."""
    return [one.strip() for one in re.findall(r"(?:<[^>]*>|\([^)]*\)|\[[^\]]*\]|[^,<(\[])+", operands) if one.strip()]


def _instruction(opcode: list[str], operands: list[str]) -> str:
    name, parts = opcode[0], [one for one in opcode[1:] if one not in _IGNORED]
    if name in _STATEMENTS:
        return _STATEMENTS[name](name, parts, operands)
    if name in _VALUES:
        return _out(operands[0], _VALUES[name](name, parts, operands))
    if name not in _PLAIN or len(parts) != 1:
        raise ValueError(name)
    return _out(operands[0], f"{name}_({', '.join(_in(parts[0], operand) for operand in operands[1:])})")


def _barrier(_name: str, parts: list[str], operands: list[str]) -> str:
    return f"machine.sync_warp({_in('u32', operands[0])});" if parts == ["warp"] else "machine.sync_block();"


def _shuffle(_name: str, parts: list[str], operands: list[str]) -> str:
    given = ", ".join(_in("u32", operand) for operand in operands[1:])
    target, _, inside = operands[0].partition("|")
    return f"{_register(target)} = shuffle_{parts[0]}(machine, {given}, &{_register(inside)});"


def _convert(_name: str, parts: list[str], operands: list[str]) -> str:
    *rounding, to, of = parts
    return f"convert<{_TYPES[to]}>({_in(of, operands[1])}, rounding::{(*rounding, 'none')[0]})"


def _agree(name: str, parts: list[str], operands: list[str]) -> str:
    """Translate an operation of all lanes of a mask with one result."""
    value = _in("pred" if name == "vote" else parts[1], operands[1])
    return f"{name}_{parts[0]}(machine, {value}, {_in('u32', operands[2])})"


def _select(_name: str, parts: list[str], operands: list[str]) -> str:
    first, second = (_in(parts[0], operand) for operand in operands[1:3])
    return f"{_in('pred', operands[3])} ? {first} : {second}"


def _shift(name: str, parts: list[str], operands: list[str]) -> str:
    return f"{name}_({_in(parts[0], operands[1])}, {_in('u32', operands[2])})"


def _multiply(name: str, parts: list[str], operands: list[str]) -> str:
    kinds = [parts[-1]] * (len(operands) - 1)
    if parts[0] == "wide" and name == "mad":
        kinds[-1] = f"{kinds[-1][0]}{2 * int(kinds[-1][1:])}"
    given = (_in(kind, operand) for kind, operand in zip(kinds, operands[1:], strict=True))
    return f"{name}_{parts[0] if len(parts) > 1 else ''}({', '.join(given)})"


def _insert(name: str, parts: list[str], operands: list[str]) -> str:
    kinds = [parts[0]] * (len(operands) - 3) + ["u32", "u32"]
    return f"{name}({', '.join(_in(kind, operand) for kind, operand in zip(kinds, operands[1:], strict=True))})"


def _count(name: str, parts: list[str], operands: list[str]) -> str:
    return f"{'_'.join([name, *parts[:-1]])}({_in(parts[-1], operands[1])})"


def _register(operand: str) -> str:
    return operand.lstrip("%")


def _in(kind: str, operand: str) -> str:
    """Return an expression for an operand of a type."""
    if operand.startswith("!"):
        return f"!{_register(operand[1:])}"
    if operand in _SPECIAL:
        operand = _SPECIAL[operand]
    elif operand.startswith("%"):
        operand = _register(operand)
    elif re.fullmatch(r"0[fd][0-9A-F]+", operand):
        operand = f"uint{32 if operand[1] == 'f' else 64}_t(0x{operand[2:]})"
    elif re.fullmatch(r"-?\d+U?", operand):
        operand = f"uint64_t({operand}LL)"
    elif re.fullmatch(r"\w+", operand):
        operand = f"address({operand})"
    else:
        raise ValueError(operand)
    return f"in<{_TYPES[kind]}>({operand})"


def _out(operand: str, value: str) -> str:
    """Return a statement that writes a register."""
    return f"out({_register(operand)}, {value});"


def _elements(operand: str) -> list[str]:
    return [one.strip() for one in operand[1:-1].split(",")] if operand.startswith("<") else [operand]


def _place(space: str, operand: str) -> str:
    """Return a pointer to an operand in brackets."""
    base, _, offset = operand[1:-1].partition("+")
    number = _in("u64", base) if base.startswith("%") else f"address({base})"
    return f"{'in_shared(machine, ' if space == 'shared' else 'at('}{number} + ({offset or 0}))"


def _memory(name: str, parts: list[str], operands: list[str]) -> str:
    space = next((part for part in parts if part in _SPACES), "generic")
    kind = _TYPES[parts[-1]]
    if name in ("atom", "red"):
        target, place, *given = operands if name == "atom" else ["", *operands]
        values = ", ".join(_in(parts[-1], one) for one in given)
        code = f"atomic_{parts[-2]}(machine, {_place(space, place)}, {values})"
        return _out(target, code) if target and target != "_" else f"{code};"
    if set(parts[:-1]) - {space, "v2", "v4"}:
        raise ValueError(parts)
    place = _place(space, operands[1 if name == "ld" else 0])
    registers = _elements(operands[0 if name == "ld" else 1])
    steps = []
    for i, one in enumerate(registers):
        at = f"{place} + {i} * sizeof({kind})"
        steps.append(
            _out(one, f"load<{kind}>({at})") if name == "ld" else f"store<{kind}>({at}, {_in(parts[-1], one)});"
        )
    if len(steps) == 1:
        return steps[0]
    # The address is read once, because the first result may be in its register.
    return f"{{ const auto base = {place}; {' '.join(steps).replace(place, 'base')} }}"


def _move(_name: str, parts: list[str], operands: list[str]) -> str:
    kind = parts[0]
    targets, sources = (_elements(operand) for operand in operands)
    if len(targets) == len(sources) == 1:
        return _out(targets[0], _in(kind, sources[0]))
    part = f"b{int(kind[1:]) // max(len(targets), len(sources))}"
    if len(targets) > 1:
        pieces = [f"static_cast<{_TYPES[part]}>(whole >> {i * int(part[1:])})" for i in range(len(targets))]
        steps = [_out(*one) for one in zip(targets, pieces, strict=True) if one[0] != "_"]
        return f"{{ const auto whole = {_in(kind, sources[0])}; {' '.join(steps)} }}"
    pieces = [f"({_TYPES[kind]}({_in(part, source)}) << {i * int(part[1:])})" for i, source in enumerate(sources)]
    return _out(targets[0], " | ".join(pieces))


def _generic(_name: str, parts: list[str], operands: list[str]) -> str:
    """Convert an address to or from the space of shared memory; the other spaces have the host's addresses."""
    *_, space, kind = parts
    value = _in(kind, operands[1])
    return _out(operands[0], f"shared_address(machine, {value})" if space == "shared" else value)


def _compare(_name: str, parts: list[str], operands: list[str]) -> str:
    comparison, *combine, kind = parts
    value = f"{comparison}_({_in(kind, operands[1])}, {_in(kind, operands[2])})"
    if combine:
        sign = {"and": "&&", "or": "||", "xor": "!="}[combine[0]]
        value = f"({value} {sign} {_in('pred', operands[3])})"
    if "|" in operands[0]:
        raise ValueError(operands[0])
    return f"{_register(operands[0])} = {value};"


def _call(_name: str, _parts: list[str], operands: list[str]) -> str:
    results = operands[0][1:-1].split(",") if operands[0].startswith("(") else []
    name, *given = operands[len(results) :] if len(results) < 2 else operands[1:]
    arguments = given[0][1:-1].split(",") if given else []
    every = [one.strip() for one in (*results, *arguments) if one.strip()]
    return f"{name}({', '.join(['machine', *every])});"


# Instructions by name: those that become statements, and those with a value for a register.
_STATEMENTS: dict[str, Callable[[str, list[str], list[str]], str]] = {
    "bra": lambda _name, _parts, operands: f"goto {operands[0][1:]};",
    "ret": lambda *_: "return;",
    "call": _call,
    "bar": _barrier,
    "mov": _move,
    "cvta": _generic,
    "setp": _compare,
    "shfl": _shuffle,
    **dict.fromkeys(("ld", "st", "atom", "red"), _memory),
}
_VALUES: dict[str, Callable[[str, list[str], list[str]], str]] = {
    "cvt": _convert,
    "selp": _select,
    **dict.fromkeys(("vote", "redux"), _agree),
    **dict.fromkeys(("shl", "shr"), _shift),
    **dict.fromkeys(("mul", "mad"), _multiply),
    "bfi": _insert,
    **dict.fromkeys(("clz", "popc", "bfind"), _count),
}
