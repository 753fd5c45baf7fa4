"""`waste bench kernels`: what it writes is complete and consistent, and `waste report` draws just that.

Usage: test_bench_kernels.py WASTE EXAMPLE_MY_KERNEL SOURCE_ROOT

Nothing here looks at how long something took: of the times only what must follow from them is checked,
with bytes and weights worked out from the format.
"""
import json
import pathlib
import re
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, print_passed, run  # noqa: E402

waste, my_kernel, root = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
HTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
TIERS = {"baseline", "avx2", "avx512bw", "icelake", "neon64"}
TOLERANCE = {"exact": 1e-6, "hilo14": 1e-3, "split8": 0.03}
QUICK = ["--min-time", "0.001", "--repetitions", "1"]
FILTER = "vq_matvec/VQ(3R|4P)/1024x2304/.*/hot/1$"


def near(a, b, tolerance):
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def name_of(case):
    return "/".join(str(case[k]) for k in ("op", "format", "shape", "tier", "precision", "cache", "threads"))


def table(text):
    """{case: its columns} of what is printed for people."""
    rows = {}
    for line in text.splitlines()[1:]:
        name, *columns = line.split()
        rows[name] = columns
    return rows


def check_cases(cases, extra=()):
    tiers = set()
    gather = {c["format"]: c["ns"] for c in cases if c["tier"] == "gather"}
    read = {c["threads"]: c["payload_gb_s"] for c in cases if c["op"] == "read"}
    check(set(gather) >= {"VQ3R", "VQ4P"} and 1 in read, "the gather to beat and the read bandwidth are measured")
    for c in cases:
        name = name_of(c)
        check(c["ns"] > 0, f"{name} took some time")
        if c["op"] == "read":
            check(c["weights_per_ns"] == 0 and c["payload_gb_s"] > 0, f"{name} reads and multiplies nothing")
            check(near(c["of_read_bandwidth"], 1, 1e-9), f"{name} is all of the read bandwidth")
            continue
        rows, cols = map(int, c["shape"].split("x"))
        # Both formats store 3 bits a weight, and an f16 scale a row.
        check(near(c["weights_per_ns"] * c["ns"], rows * cols, 1e-9), f"{name}: weights")
        check(near(c["payload_gb_s"] * c["ns"], rows * cols * 3 / 8 + 2 * rows, 1e-9), f"{name}: bytes")
        check(near(c["x_gather"], gather[c["format"]] / c["ns"], 1e-9), f"{name}: times gather")
        check(c["of_read_bandwidth"] == 0, f"{name}: hot bytes are not compared with RAM")
        check(0 < c["rel_error"] < TOLERANCE[c["precision"]], f"{name}: error {c['rel_error']}")
        check(c["tier"] in TIERS | {"gather", *extra}, f"{name}: a known tier")
        tiers.add(c["tier"])
    return tiers


def check_page(cases, lines, scratch):
    """What `waste report --kernels` shows of them."""
    page = scratch / "report.html"
    run(waste, "report", root / "tests/data/golden/olmoe.waste", "--out", page, "--kernels", lines, "-q")
    tree = ElementTree.fromstring(page.read_text(encoding="utf-8"))
    data = json.loads(tree.find(f".//{HTML}script[@id='data']").text)
    check(data["kernels"] == cases, "the page carries the cases unchanged")
    products = [c for c in cases if c["op"] == "vq_matvec"]
    (picture,) = [s for s in tree.iter(f"{SVG}svg") if s.get("aria-label", "").startswith("Roofline")]
    titles = [c.find(f"{SVG}title").text for c in picture.iter(f"{SVG}circle") if c.find(f"{SVG}title") is not None]
    shown = sorted(float(re.search(r", ([0-9.e+-]+)$", t)[1]) for t in titles)
    wanted = sorted(c["weights_per_ns"] for c in products)
    check(len(shown) == len(wanted), f"{len(shown)} points for {len(wanted)} cases")
    for a, b in zip(shown, wanted):
        check(near(a, b, 1e-3), f"a point at {a}, measured {b}")


def main():
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="waste-bench-"))
    listed = run(waste, "bench", "kernels", "--list").stdout.split()
    ops = {n.split("/")[0] for n in listed}
    check(len(listed) == len(set(listed)) > 100, "names are unique")
    check(ops >= {"read", "vq_matvec", "trunk_matvec", "crc32"}, f"every family is listed: {ops}")
    few = run(waste, "bench", "kernels", "--list", "--filter", FILTER).stdout.split()
    check(few == [n for n in listed if re.search(FILTER, n)], "the filter is a regular expression over the names")

    lines, svg = scratch / "kernels.jsonl", scratch / "roofline.svg"
    done = run(waste, "bench", "kernels", "--filter", FILTER, "--json", lines, "--svg", svg, *QUICK)
    cases = [json.loads(line) for line in lines.read_text().splitlines()]
    names = [name_of(c) for c in cases]
    check([n for n in names if not n.startswith("read/")] == few, "what was listed is what was measured")
    check("baseline" in check_cases(cases), "the baseline tier is measured")
    printed = table(done.stdout)
    check(list(printed) == names, "the table has the same cases")
    for c in cases:
        check(near(float(printed[name_of(c)][0]), c["ns"] / 1e3, 0.01 + 5 / c["ns"]), f"{name_of(c)}: the table's time")
    ElementTree.fromstring(svg.read_text())
    check(done.stderr.count("more\n") >= 3, "progress is on standard error")
    check_page(cases, lines, scratch)

    done = run(waste, "bench", "kernels", "--filter", "vq_matvec/VQ3R/1024x2304/baseline/exact/hot/1$", "--json", "-", "-q", *QUICK)
    piped = [json.loads(line) for line in done.stdout.splitlines()]
    check(sum(c["op"] == "vq_matvec" for c in piped) == 1 and not done.stderr, "JSON alone on standard output")

    # A kernel of one's own joins, and is held to the same reference.
    run(my_kernel, "--filter", FILTER, "--json", scratch / "mine.jsonl", *QUICK)
    mine = [json.loads(line) for line in (scratch / "mine.jsonl").read_text().splitlines()]
    check("pairs" in check_cases(mine, extra=["pairs"]), "the example's kernel is measured beside the others")

    for arguments, code, word in ((["--filter", "("], 1, "filter"), (["--filter", "nothing-like-it"], 1, "matches no case"),
                                  (["--min-time", "0"], 64, "min-time"), (["--nonsense"], 64, "nonsense")):  # fmt: skip
        said = run(waste, "bench", "kernels", *arguments, code=code).stderr
        check(word in said, f"{arguments} is refused: {said}")
    check("DIR" in run(waste, "bench", code=64).stderr, "bench without kernels wants a container")
    said = run(waste, "bench", "kernels", "--filter", FILTER, "--json", scratch / "no" / "such", "-q", *QUICK, code=1).stderr
    check("such" in said, f"an output that cannot be written is named: {said}")
    print_passed()


if __name__ == "__main__":
    main()
