"""Whether docs/api.md gives every header a level, and names nothing that is not there.

Usage: check_api.py ROOT
"""
import pathlib
import re
import sys

LEVELS = ("public", "study", "detail")


def main():
    root = pathlib.Path(sys.argv[1])
    text = (root / "docs/api.md").read_text(encoding="utf-8")
    problems, level_of = [], {}
    for level in LEVELS:
        row = re.search(rf"^\| {level} \| ([^|]+) \|", text, re.M)
        for name in re.findall(r"`([^`]+)`", row[1] if row else ""):
            if not (root / "include/waste" / name).exists():
                problems.append(f"docs/api.md: {name} ({level}) is not there")
            if name in level_of:
                problems.append(f"docs/api.md: {name} has two levels")
            level_of[name] = level
    counts = dict.fromkeys(LEVELS, 0)
    for path in sorted((root / "include/waste").rglob("*.hpp")):
        name = path.relative_to(root / "include/waste").as_posix()
        found = [n for n in level_of if name == n or (n.endswith("/") and name.startswith(n))]
        if found:
            counts[level_of[max(found, key=len)]] += 1
        else:
            problems.append(f"docs/api.md gives {name} no level")
    print("\n".join(problems))
    print(", ".join(f"{n} {level}" for level, n in counts.items()) + f" headers, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
