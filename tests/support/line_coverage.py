"""Adds up the line coverage of some header folders and the sources that implement them.

Usage: line_coverage.py [-v] BUILD_DIR HEADER_FOLDER...    or    line_coverage.py --sources HEADER_FOLDER...
--sources only lists them. A source of src/ belongs to the folder of the header that it is named after.
Exit code 1 below 95 %.
"""
import collections
import json
import pathlib
import subprocess
import sys

WANTED = 0.95
# Sources that are not named after a header.
OWNERS = {"side_files": "convert", "model_families": "format", "codebook_fit": "quant"}
ROOT = pathlib.Path(__file__).resolve().parents[2]


def wanted_files(folders):
    headers = {path.stem: path.parent for path in (ROOT / "include/waste").rglob("*.hpp")}
    headers |= {stem: ROOT / "include/waste" / folder for stem, folder in OWNERS.items()}
    wanted = {ROOT / folder for folder in folders}
    files = {path for folder in wanted for path in folder.glob("*.hpp")}
    for source in (ROOT / "src").glob("*.cpp"):
        stems = [stem for stem in headers if source.stem == stem or source.stem.startswith(stem + "_")]
        if stems and headers[max(stems, key=len)] in wanted:
            files.add(source)
    return files


def counts_of(build, wanted):
    """{file: {line: executions}}, the most that any object saw."""
    lines = collections.defaultdict(dict)
    for notes in sorted(build.rglob("*.gcno")):
        if not notes.with_suffix(".gcda").exists():
            continue
        run = subprocess.run(["gcov", "--json-format", "--stdout", notes.with_suffix(".gcda")],
                             cwd=build, capture_output=True, text=True, check=True)
        for document in run.stdout.splitlines():
            for file in json.loads(document)["files"]:
                path = (ROOT / file["file"]).resolve()
                if path not in wanted:
                    continue
                for line in file["lines"]:
                    number, count = line["line_number"], line["count"]
                    lines[path][number] = max(lines[path].get(number, 0), count)
    return lines


def main(arguments):
    if arguments[0] == "--sources":
        print(" ".join(str(f.relative_to(ROOT)) for f in sorted(wanted_files(arguments[1:])) if f.suffix == ".cpp"))
        return 0
    verbose = "-v" in arguments
    build, *folders = [a for a in arguments if a != "-v"]
    lines = counts_of(pathlib.Path(build).resolve(), wanted_files(folders))
    total = covered = 0
    for path in sorted(lines):
        counts = lines[path]
        missed = sorted(n for n, count in counts.items() if count == 0)
        total, covered = total + len(counts), covered + len(counts) - len(missed)
        print(f"{path.relative_to(ROOT)}: {len(counts) - len(missed)} of {len(counts)}")
        if verbose and missed:
            text = path.read_text(encoding="utf-8").splitlines()
            for n in missed:
                print(f"  {n:4} {text[n - 1]}")
    print(f"{covered} of {total} lines, {100 * covered / max(total, 1):.1f} %")
    return 0 if total and covered >= WANTED * total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
