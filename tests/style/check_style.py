"""House rules that a compiler does not check. Usage: check_style.py ROOT

Layers: a header includes only its own folder and the folders to its left (ARCHITECTURE.md).
Also: first line says the header's one job; nlohmann only in src/json.cpp (and test support), never
in headers; no iostream in headers; raw intrinsics only in arch/detail; Eigen only from nn up;
file lengths; the version in one place; the scripts that README names exist.
"""
import pathlib
import re
import shutil
import subprocess
import sys

MAX_LINES = 450
# Folder -> folders it may include besides itself.
LAYERS = {
    "core": set(),
    "format": {"core"},
    "io": {"core", "format"},
    "arch": {"core"},
    "quant": {"core", "format", "arch"},
    "kernels": {"core", "format", "arch", "quant"},
    "nn": {"core", "format", "arch", "quant", "kernels"},
    "engine": {"core", "format", "arch", "io", "quant"},
    "text": {"core", "format", "io"},
    "convert": {"core", "format", "arch", "io", "quant", "kernels"},
    "model": {"core", "format", "arch", "io", "quant", "kernels", "nn", "engine", "text", "convert"},
}
EIGEN_FOLDERS = {"nn", "model"}
INTRINSICS = re.compile(r"#\s*include\s*<(\w*mmintrin|immintrin|arm_neon|arm_acle|x86intrin)\.h>")
INCLUDE = re.compile(r'#\s*include\s*[<"]([^>"]+)[>"]')


def includes(text):
    return INCLUDE.findall(text)


def check_header(path, root, problems):
    rel = path.relative_to(root)
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    folder = rel.parts[2] if len(rel.parts) > 3 else ""
    if not lines or not lines[0].startswith("// ") or len(lines[0]) < 12:
        problems.append(f"{rel}:1: the first line must say the header's one job")
    if "#pragma once" not in text:
        problems.append(f"{rel}: no #pragma once")
    for name in includes(text):
        if name == "iostream":
            problems.append(f"{rel}: iostream in a header")
        if name.startswith("nlohmann"):
            problems.append(f"{rel}: nlohmann in a header")
        if name.startswith("Eigen") and folder not in EIGEN_FOLDERS:
            problems.append(f"{rel}: Eigen below nn")
        if folder and name.startswith("waste/") and name.count("/") > 1:
            other = name.split("/")[1]
            if other != folder and other not in LAYERS.get(folder, set()):
                problems.append(f"{rel}: {folder} may not include {name}")
    if folder and folder not in LAYERS:
        problems.append(f"{rel}: folder {folder} is not in the architecture")


def check_code(path, root, problems):
    rel = path.relative_to(root)
    text = path.read_text(encoding="utf-8")
    if text.count("\n") > MAX_LINES and rel.parts[0] in ("include", "src"):
        problems.append(f"{rel}: {text.count(chr(10))} lines, wanted at most {MAX_LINES}")
    in_detail = "arch/detail/" in rel.as_posix()
    if INTRINSICS.search(text) and not in_detail and rel.parts[0] in ("include", "src"):
        problems.append(f"{rel}: raw intrinsics outside arch/detail")
    if rel.parts[0] == "src" and rel.as_posix() != "src/json.cpp":
        if any(n.startswith("nlohmann") for n in includes(text)):
            problems.append(f"{rel}: nlohmann outside src/json.cpp")
    if rel.parts[0] == "src" and "cli" not in rel.parts:
        if re.search(r"\b(std::cout|std::cerr|printf\(|abort\(\)|std::exit|_exit\()", re.sub(r"snprintf", "", text)):
            problems.append(f"{rel}: the library must not print, abort or exit")


def check_version(root, problems):
    meson = re.search(r"version : '([\d.]+)'", (root / "meson.build").read_text())[1]
    header = (root / "include/waste/version.hpp").read_text()
    if f'"{meson}"' not in header:
        problems.append(f"version.hpp does not say {meson} as meson.build does")
    parts = re.findall(r"version_(?:major|minor|patch) = (\d+)", header)
    if ".".join(parts) != meson:
        problems.append("version_major, _minor, _patch do not say " + meson)


def check_umbrella(root, problems):
    reach = set()

    def walk(name):
        if name in reach:
            return
        reach.add(name)
        path = root / "include" / name
        if path.exists():
            for n in includes(path.read_text(encoding="utf-8")):
                if n.startswith("waste/"):
                    walk(n)

    walk("waste/waste.hpp")
    for name in sorted(reach):
        if name.split("/")[1] in ("engine", "convert", "model"):
            problems.append(f"waste.hpp reaches {name}")


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    problems = []
    headers = sorted((root / "include").rglob("*.hpp"))
    code = headers + sorted((root / "src").rglob("*.[ch]pp"))
    for path in headers:
        check_header(path, root, problems)
    for path in code:
        check_code(path, root, problems)
    check_version(root, problems)
    check_umbrella(root, problems)
    readme = (root / "README.md").read_text(encoding="utf-8")
    for script in ("examples/quickstart.sh", "tests/run.sh"):
        if script not in readme:
            problems.append(f"README.md does not name {script}")
    program = (root / "examples/matvec.cpp").read_text(encoding="utf-8").split("\n", 1)[1].strip()
    if program not in readme:
        problems.append("README.md does not show examples/matvec.cpp as it is compiled")
    for link in re.findall(r"\]\(([^)#:]+)\)", readme):
        if not (root / link).exists():
            problems.append(f"README.md links to {link}, which is not there")
    tracked = []  # an unpacked archive, or a machine without git
    if shutil.which("git"):
        done = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True)
        tracked = done.stdout.split()
    for name in tracked:
        if name.startswith("build/"):
            problems.append(f"{name}: build products are tracked")
    print("\n".join(problems))
    print(f"{len(code)} files checked, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
