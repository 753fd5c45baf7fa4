"""The page of `waste report`: well-formed, without a network, its numbers those of the other commands.

Usage: test_report.py WASTE SOURCE_ROOT

Charts are checked against the numbers too: the place of a point and the length of a bar are worked back
into what they stand for. Where Chromium is installed the page is also laid out in it: nothing may be cut
off, and the tables and the JSON that the browser sees must be the report's.
"""
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, print_passed, run  # noqa: E402

waste, root = sys.argv[1], pathlib.Path(sys.argv[2])
source = root / "examples/tiny_k3/checkpoint"
HTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"

KERNELS = [
    {"op": "read", "format": "-", "shape": "-", "tier": "-", "precision": "-", "cache": "ram", "threads": 1, "ns": 5.0e6,
     "weights_per_ns": 0, "payload_gb_s": 12.5, "rel_error": 0},
    {"op": "vq_matvec", "format": "VQ3R", "shape": "1024x2304", "tier": "avx2", "precision": "split8", "cache": "ram",
     "threads": 1, "ns": 181000.0, "weights_per_ns": 13.03, "payload_gb_s": 4.888, "rel_error": 0.0123},
]  # fmt: skip
TRACE = {"tokens": 300, "working_set_records": 208, "results": [
    {"policy": "lru", "cache": 208, "hit_rate": 0.234, "hit_rate_last_100": 0.25},
    {"policy": "a <b> & \"c\"", "cache": 416, "hit_rate": 0.5, "hit_rate_last_100": 0.75},
]}  # fmt: skip


def cells(page, table):
    found = page.find(f".//{HTML}table[@id='{table}']")
    check(found is not None, f"the page has a table {table}")
    return [["".join(c.itertext()) for c in row] for row in found.findall(f"{HTML}tr")][1:]


def pictures(page):
    return {s.get("aria-label"): s for s in page.iter(f"{SVG}svg")}


def points(picture):
    """Where the circles with a title stand: (title, x, y)."""
    out = []
    for circle in picture.iter(f"{SVG}circle"):
        title = circle.find(f"{SVG}title")
        if title is not None:
            out.append((title.text, float(circle.get("cx")), float(circle.get("cy"))))
    return out


def number(text):
    return int(text.replace(",", ""))


def near(a, b, tolerance=0.011):
    return abs(a - b) <= tolerance


def check_numbers(page, data, container, verify):
    info = json.loads(run(waste, "info", container, "--json").stdout)
    plan = json.loads(run(waste, "plan", container, "--json").stdout)
    for ours, theirs in {"experts": "expert_bytes", "trunk": "trunk_bytes", "codebooks": "codebook_bytes",
                         "manifest": "manifest_bytes", "total": "total_bytes", "trunk_holes": "trunk_hole_bytes"}.items():  # fmt: skip
        check(data["bytes"][ours] == info[theirs], f"bytes of {ours}: {data['bytes'][ours]}, info says {info[theirs]}")
    formats = {f["format"]: f["bytes"] for f in data["bytes"]["trunk_formats"]}
    check(formats == {k: v["bytes"] for k, v in info["trunk_formats"].items()}, "bytes of each trunk format")
    shown = {row[0]: number(row[1]) for row in cells(page, "bytes")}
    check(shown["experts"] == info["expert_bytes"] and shown["total"] == info["total_bytes"], f"the table shows {shown}")
    for key, value in data["plan"].items():
        check(plan[key] == value, f"plan {key}: {value}, waste plan says {plan[key]}")
    table = {row[0]: number(row[1]) for row in cells(page, "plan")}
    check(table["floor"] == plan["floor_bytes"] and table["everything"] == plan["everything_bytes"], f"the table shows {table}")
    check(data["errors"]["experts"] == verify["experts_error"], "errors of the experts are those of waste verify")
    check(data["errors"]["trunk"] == verify["trunk_error"], "errors of the trunk are those of waste verify")
    check(data["errors"]["expert_limit"] == verify["expert_limit"], "the limit is that of waste verify")
    for row, error in zip(cells(page, "errors"), verify["experts_error"], strict=True):
        check([row[0], row[1]] == [str(error["layer"]), error["kind"]], f"row {row}")
        check(near(float(row[2].split()[0]), 100 * error["relative_error"]), f"row {row} shows {error}")


def check_pictures(page, data):
    drawn = pictures(page)
    rects = [float(r.get("width")) for r in drawn["Bytes per part"].iter(f"{SVG}rect") if r.get("height") == "24"]
    parts = [data["bytes"]["experts"], *(f["bytes"] for f in data["bytes"]["trunk_formats"]),
             data["bytes"]["codebooks"], data["bytes"]["manifest"]]  # fmt: skip
    for length, part in zip(rects, parts, strict=True):
        check(near(length, 590 * part / data["bytes"]["total"], 0.02), f"a bar of {length} for {part}")
    errors = data["errors"]["experts"]
    least, most = errors[0]["layer"], errors[-1]["layer"]
    high = 1.1 * 100 * data["errors"]["expert_limit"]
    wanted = sorted((72 + 488 * (e["layer"] - least) / (most - least), 350 - 334 * 100 * e["relative_error"] / high) for e in errors)
    got = sorted((x, y) for _, x, y in points(drawn["Relative error of the experts per layer and kind"]))
    for (x, y), (wx, wy) in zip(got, wanted, strict=True):
        check(near(x, wx, 0.1) and near(y, wy, 0.1), f"a point at {x}, {y}, wanted {wx}, {wy}")
    hits = points(drawn["Hit rate of the expert cache"])
    check(len(hits) == 2 and near(hits[1][2], 350 - 334 * 0.234, 0.1), f"hit rates at {hits}")
    (kernel,) = points(drawn["Roofline of the kernels"])
    check(kernel[0].startswith("avx2 split8: 2.666, 13.03"), f"the kernel's point says {kernel[0]}")


# Run inside the browser, behind the page's own markup: what it laid out, as JSON in an attribute.
PROBE = """<script>
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom].map(Math.round); };
document.body.setAttribute("data-seen", JSON.stringify({
  data: JSON.parse(document.getElementById("data").textContent),
  pictures: [...document.querySelectorAll("svg")].map(s => ({
    name: s.getAttribute("aria-label"), box: box(s), texts: [...s.querySelectorAll("text")].map(box),
    marks: [...s.querySelectorAll("circle, rect")].map(box)})),
  tables: Object.fromEntries([...document.querySelectorAll("table")].map(t =>
    [t.id, [...t.rows].slice(1).map(r => [...r.cells].map(c => c.innerText.trim() || c.textContent.trim()))])),
  asked: performance.getEntriesByType("resource").length,
  width: document.documentElement.scrollWidth, wide: window.innerWidth}));
</script>"""


def check_browser(path, page, data):
    """The page as a real browser lays it out: every picture visible, nothing cut off, numbers those of the JSON."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        print("SKIPPED: no Chromium here, so the page was not loaded in a browser")
        return
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=900,3000",
             f"--user-data-dir={path.parent / 'browser'}"]  # fmt: skip
    probed = path.with_name("probed.html")
    probed.write_text(path.read_text(encoding="utf-8").replace("</body>", PROBE + "</body>"), encoding="utf-8")
    done = subprocess.run([browser, *flags, "--dump-dom", probed.as_uri()], capture_output=True, text=True, timeout=300)
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    check(found, f"Chromium ran the page: {done.stdout[-500:]}{done.stderr[-1500:]}")
    seen = json.loads(html.unescape(found[1]))
    check(seen["data"] == data, "the JSON that the browser reads is the report's")
    check(seen["asked"] == 0, "the browser asked for nothing else")
    check(seen["width"] <= seen["wide"], "the page is no wider than its window")
    check([p["name"] for p in seen["pictures"]] == list(pictures(page)), "all pictures are there")
    for p in seen["pictures"]:
        left, top, right, bottom = p["box"]
        check(right - left > 300 and bottom - top > 60, f"{p['name']} is laid out as {p['box']}")
        for mark in p["texts"] + p["marks"]:
            inside = left - 1 <= mark[0] and mark[2] <= right + 1 and top - 1 <= mark[1] and mark[3] <= bottom + 1
            check(inside, f"{p['name']}: something at {mark} is cut off by {p['box']}")
    for first, second in zip(seen["pictures"], seen["pictures"][1:]):
        check(first["box"][3] <= second["box"][1], f"{first['name']} overlaps {second['name']}")
    tables = {t.get("id") for t in page.iter(f"{HTML}table")}
    check(set(seen["tables"]) == tables, "all tables are there")
    for table, rows in seen["tables"].items():
        check(rows == [[" ".join(c.split()) for c in row] for row in cells(page, table)], f"table {table} shows {rows}")
    kernel = KERNELS[1]
    name = "/".join(str(kernel[k]) for k in ("op", "format", "shape", "tier", "precision", "cache", "threads"))
    check([name, "181.00", "13.03", "4.89", "1.2300 %"] in seen["tables"]["kernels"], "the kernel's numbers are those given")
    check(["lru", "208", "23.40 %", "25.00 %"] in seen["tables"]["trace"], "the hit rates are those given")
    shot = path.with_suffix(".png")
    subprocess.run([browser, *flags, f"--screenshot={shot}", path.as_uri()], capture_output=True, timeout=300, check=True)
    check(shot.stat().st_size > 10000, "a screenshot of it is no blank page")
    print("the page was loaded and measured in", pathlib.Path(browser).name)


def check_refusals(container, scratch):
    out = scratch / "refused.html"
    bad = {"nokernel": '{"op": "x"}\n', "notobject": "[1]", "notjson": "{"}
    for name, text in bad.items():
        (scratch / name).write_text(text)
    for option, name, word in (("--kernels", "nokernel", "ns"), ("--kernels", "notjson", "line 1"),
                               ("--trace", "notobject", "top level"), ("--verify", "nokernel", "expert_limit"),
                               ("--trace", "nowhere", "nowhere")):  # fmt: skip
        said = run(waste, "report", container, "--out", out, option, scratch / name, code=1).stderr
        check(word in said and name in said, f"{option} {name} is refused naming file and field: {said}")
    run(waste, "report", scratch / "nowhere", "--out", out, code=1)
    run(waste, "report", container, code=64)
    check(not out.exists(), "nothing is written where something is refused")


def main():
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="waste-report-"))
    container = scratch / "tiny.waste"
    run(waste, "convert", source, container, "--effort", "fast", "-q")
    saved = run(waste, "verify", container, "--source", source, "--json", "-q").stdout
    (scratch / "verify.json").write_text(saved)
    (scratch / "kernels.jsonl").write_text("".join(json.dumps(k) + "\n" for k in KERNELS))
    (scratch / "trace.json").write_text(json.dumps(TRACE))

    path = scratch / "report.html"
    extra = ["--kernels", scratch / "kernels.jsonl", "--trace", scratch / "trace.json"]
    run(waste, "report", container, "--out", path, "--source", source, *extra, "-q")
    text = path.read_text(encoding="utf-8")
    check(not re.search(r"(?:src|href)=|@import|url\(|https?://(?!www\.w3\.org/(?:1999/xhtml|2000/svg)\")", text), "the page asks for nothing")
    page = ElementTree.fromstring(text)
    data = json.loads(page.find(f".//{HTML}script[@id='data']").text)
    check_numbers(page, data, container, json.loads(saved))
    check(data["kernels"] == KERNELS and data["trace"] == TRACE, "kernels and trace are those given")
    check([r[0] for r in cells(page, "trace")] == ["lru", TRACE["results"][1]["policy"]], "names are text, not markup")
    check_pictures(page, data)
    check_browser(path, page, data)

    again = scratch / "again.html"
    run(waste, "report", container, "--out", again, "--verify", scratch / "verify.json", *extra, "-q")
    check(again.read_text(encoding="utf-8") == text, "a saved verification gives the same page")
    run(waste, "report", container, "--out", again, "-q")
    bare = ElementTree.fromstring(again.read_text(encoding="utf-8"))
    check(len(pictures(bare)) == 2 and "Not measured" in again.read_text(), "what was not given is said to be missing")
    other = root / "tests/data/golden/olmoe.waste"
    run(waste, "report", other, "--out", again, "-q")
    text = again.read_text(encoding="utf-8")
    data = json.loads(ElementTree.fromstring(text).find(f".//{HTML}script[@id='data']").text)
    check(data["plan"] is None and "no plan for this family" in text, "a family without a memory plan has a page")
    check_refusals(container, scratch)
    shutil.rmtree(scratch)
    print_passed()


if __name__ == "__main__":
    main()
