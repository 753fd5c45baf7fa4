"""Builds and runs every C++ block of README.md and docs/, and compares what it prints with the page.

Usage: check_programs.py ROOT BUILD_DIR [PAGE ...]

A block fenced as ```cpp is a whole program. Where a block fenced as ```text follows it (nothing but blank
lines between), that is what the program must print, byte for byte. Programs run in one scratch folder, in
the order of the pages in docs/README.md and README.md last, with `tiny.waste` as argument: the container
that a program of docs/format.md writes there; they are built against an installed copy of the library, found
by pkg-config, and must compile without a word. Also checked: every page of docs/ is listed in
docs/README.md, and no relative link of any page leads nowhere.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from installed import Installed  # noqa: E402

BLOCK = re.compile(r"^```cpp\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.M | re.S)
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")


def pages(root):
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (root / "docs/README.md").read_text(encoding="utf-8"))
    return [f"docs/{name}" for name in dict.fromkeys(listed)]


def check_links(root, problems):
    here = sorted(p.name for p in (root / "docs").glob("*.md") if p.name != "README.md")
    for name in here:
        if f"docs/{name}" not in pages(root):
            problems.append(f"docs/README.md does not list {name}")
    for page in [*sorted((root / "docs").glob("*.md")), *sorted(root.glob("*.md"))]:
        for target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                problems.append(f"{page.relative_to(root)} links to {target}, which is not there")


def build_and_run(source, scratch, installed, number):
    (scratch / f"{number}.cpp").write_text(source)
    program = scratch / f"program{number}"
    said = installed.compile(scratch / f"{number}.cpp", program)
    if said:
        return None, f"does not compile without a word:\n{said[:3000]}"
    done = subprocess.run([program, "tiny.waste"], cwd=scratch, capture_output=True, text=True, timeout=300)
    if done.returncode:
        return None, f"ends with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout, None


def main():
    root, build = (pathlib.Path(p).resolve() for p in sys.argv[1:3])
    problems, programs, compared = [], 0, 0
    check_links(root, problems)
    wanted = sys.argv[3:] or [*pages(root), "README.md"]
    with tempfile.TemporaryDirectory() as scratch:
        installed = Installed(build, scratch)
        for page in wanted:
            text = (root / page).read_text(encoding="utf-8")
            for match in BLOCK.finditer(text):
                source, expected = match.groups()
                line = text.count("\n", 0, match.start()) + 1
                if "int main(" not in source:
                    problems.append(f"{page}:{line}: a ```cpp block that is no program")
                    continue
                programs += 1
                printed, problem = build_and_run(source, pathlib.Path(scratch), installed, programs)
                if problem:
                    problems.append(f"{page}:{line}: {problem}")
                elif expected is None:
                    if not printed:
                        problems.append(f"{page}:{line}: prints nothing")
                else:
                    compared += 1
                    if printed != expected:
                        problems.append(f"{page}:{line}: prints\n{printed}the page says\n{expected}")
    print("\n".join(problems))
    print(f"{programs} programs built and run, {compared} compared with their page, {len(problems)} problems")
    return 1 if problems or not programs else 0


if __name__ == "__main__":
    sys.exit(main())
