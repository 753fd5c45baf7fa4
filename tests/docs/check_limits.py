"""Whether the limits that SECURITY.md states are those that the code sets. Usage: check_limits.py ROOT

A row `| what | LIMIT; LIMIT | `FILE` `NAME` `NAME` |` must find in FILE, for each NAME, a definition
`NAME = VALUE;` of the same number. CHANGELOG.md must have an entry for the version being built.
"""
import ast
import pathlib
import re
import sys

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "bytes": 1}


def stated(text):
    """"32 MiB", "65,535", "2^46" as a number."""
    number, _, unit = text.strip().partition(" ")
    base, _, power = number.replace(",", "").partition("^")
    value = int(base) ** int(power) if power else int(base)
    return value * UNITS[unit] if unit else value


def evaluate(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        a, b = evaluate(node.left), evaluate(node.right)
        if isinstance(node.op, ast.LShift):
            return a << b
        if isinstance(node.op, ast.Mult):
            return a * b
    raise ValueError(ast.dump(node))


def set_in_code(path, name):
    found = re.findall(rf"\b{name} = ([^;]+);", path.read_text(encoding="utf-8"))
    if len(found) != 1:
        return None
    text = re.sub(r"std::\w+\{(\w+)\}", r"\1", found[0])
    text = re.sub(r"(?<=\d)'(?=\d)", "", text)
    text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
    return evaluate(ast.parse(text, mode="eval").body)


def main():
    root = pathlib.Path(sys.argv[1])
    problems, checked = [], 0
    security = (root / "SECURITY.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \| `([\w/.]+)` ((?:`\w+` ?)+)\|$", security, re.M):
        what, limits, file, names = row
        limits, names = limits.split(";"), re.findall(r"`(\w+)`", names)
        if len(limits) != len(names):
            problems.append(f"{what}: {len(limits)} limits, {len(names)} names")
            continue
        for limit, name in zip(limits, names):
            checked += 1
            got = set_in_code(root / file, name)
            if got != stated(limit):
                problems.append(f"{what}: SECURITY.md says {limit.strip()}, {file} sets {name} to {got}")
    if checked < 20:
        problems.append(f"only {checked} limits found in SECURITY.md")
    version = re.search(r"version : '([\d.]+)'", (root / "meson.build").read_text())[1]
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## (\S+)", changes, re.M)
    if not first or first[1] != version:
        problems.append(f"the first entry of CHANGELOG.md is {first and first[1]}, the version {version}")
    print("\n".join(problems))
    print(f"{checked} limits checked, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
