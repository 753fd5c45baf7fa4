"""Table and plot of what bench/tiny_k3_quality.sh measured. Usage: tiny_k3_quality.py OUT

Prints a Markdown table (also OUT/table.md) and draws OUT/quality.svg: bits per byte over the float source against the relative
error of the experts' weights. Needs nothing but the standard library.
"""
import html
import json
import math
import pathlib
import sys

FORMATS = {"vq2r": "VQ2R", "vq3r": "VQ3R", "vq4p": "VQ4P"}
EFFORTS = {"fast": "fast", "default": "default", "best": "best", "calibrated": "best + calibration"}
COLORS = {"vq2r": "#c0392b", "vq3r": "#2471a3", "vq4p": "#1e8449"}


def load(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def root_mean_square(errors):
    """Every matrix counts the same; those of a kind have one size."""
    return math.sqrt(sum(e * e for e in errors) / len(errors)) if errors else math.nan


def read_cells(out):
    cells = []
    for fmt in FORMATS:
        for effort in EFFORTS:
            for bits in (4, 8):
                name = f"{fmt}-{effort}-{bits}"
                evaluation, verify = load(out / f"{name}.eval.json"), load(out / f"{name}.verify.json")
                if evaluation is None or verify is None:
                    continue
                convert = load(out / f"{name}.convert.json")
                output = list(convert.get("relative_output_error", {}).values())
                cells.append({
                    "format": fmt, "effort": effort, "bits": bits,
                    "weights": root_mean_square([e["relative_error"] for e in verify["experts_error"]]),
                    "outputs": root_mean_square(output),
                    "trunk": root_mean_square([t["relative_error"] for t in verify["trunk_error"] if t["format"] != "F32"]),
                    "rate": evaluation["bits_per_byte"], "seconds": convert["seconds"],
                })
    return cells


def table(cells, base):
    lines = ["| experts | effort | weight error % | output error % | trunk bits | trunk weight error % | bits per byte | over float |",
             "|---|---|---|---|---|---|---|---|"]
    for c in cells:
        outputs = "-" if math.isnan(c["outputs"]) else f"{100 * c['outputs']:.1f}"
        lines.append(f"| {FORMATS[c['format']]} | {EFFORTS[c['effort']]} | {100 * c['weights']:.2f} | {outputs} | {c['bits']} | "
                     f"{100 * c['trunk']:.2f} | {c['rate']:.4f} | {c['rate'] - base:+.4f} |")
    lines.append(f"\nFloat source: {base:.4f} bits per byte over all of heldout.txt, windows of 256 tokens. Output error: of calibrated "
                 "experts' output on the calibration text, as the encoder sees it (damped).")
    return "\n".join(lines)


def plot(cells, base):
    width, height, left, bottom, top, right = 760, 460, 80, 60, 30, 190
    xs = [100 * c["weights"] for c in cells]
    ys = [1000 * (c["rate"] - base) for c in cells]
    x1 = 5 * math.ceil(max(xs) / 5)
    x0 = 5 * math.floor(min(xs) / 5)
    y0, y1 = min(0.0, math.floor(min(ys))), max(1.0, math.ceil(max(ys)))

    def px(x):
        return left + (x - x0) / (x1 - x0) * (width - left - right)

    def py(y):
        return height - bottom - (y - y0) / (y1 - y0) * (height - bottom - top)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']

    def text(x, y, s, more=""):
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(s)}</text>')

    step = 5 if x1 - x0 > 10 else 1
    for x in range(x0, x1 + 1, step):
        parts.append(f'<line x1="{px(x):.1f}" y1="{py(y0):.1f}" x2="{px(x):.1f}" y2="{py(y1):.1f}" stroke="#e5e5e5"/>')
        text(px(x), height - bottom + 18, f"{x} %", 'text-anchor="middle"')
    y_step = max(1, round((y1 - y0) / 8))
    y = math.ceil(y0)
    while y <= y1:
        parts.append(f'<line x1="{px(x0):.1f}" y1="{py(y):.1f}" x2="{px(x1):.1f}" y2="{py(y):.1f}" stroke="#e5e5e5"/>')
        text(left - 8, py(y) + 4, f"{y / 1000:+.3f}", 'text-anchor="end"')
        y += y_step
    text((left + width - right) / 2, height - 18, "relative error of expert weights", 'text-anchor="middle"')
    text(18, (height - bottom + top) / 2, "bits per byte over the float source",
         f'text-anchor="middle" transform="rotate(-90 18 {(height - bottom + top) / 2})"')
    for c, x, y in zip(cells, xs, ys):
        color = COLORS[c["format"]]
        fill = color if c["bits"] == 8 else "white"
        shape = {"fast": 0, "default": 1, "best": 2, "calibrated": 3}[c["effort"]]
        title = f"<title>{FORMATS[c['format']]} {EFFORTS[c['effort']]}, trunk {c['bits']}: {y / 1000:+.4f}</title>"
        cx, cy = px(x), py(y)
        style = f'fill="{fill}" stroke="{color}" stroke-width="1.8"'
        if shape == 0:
            parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="5" {style}>{title}</circle>')
        else:
            n = {1: 4, 2: 3, 3: 5}[shape]
            around = " ".join(f"{cx + 6.5 * math.sin(2 * math.pi * (i + 0.5 * (n == 4)) / n):.1f},"
                              f"{cy - 6.5 * math.cos(2 * math.pi * (i + 0.5 * (n == 4)) / n):.1f}" for i in range(n))
            parts.append(f'<polygon points="{around}" {style}>{title}</polygon>')
    x, y = width - right + 20, top + 20
    for fmt, name in FORMATS.items():
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{COLORS[fmt]}"/>')
        text(x + 18, y, name)
        y += 20
    for line in ("filled: trunk 8 bits", "hollow: trunk 4 bits", "circle: fast", "square: default", "triangle: best",
                 "pentagon: best + calibration"):
        text(x, y + 6, line, 'fill="#555"')
        y += 18
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def main():
    out = pathlib.Path(sys.argv[1])
    base = load(out / "float.eval.json")["bits_per_byte"]
    cells = read_cells(out)
    text = table(cells, base)
    (out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    if cells:
        (out / "quality.svg").write_text(plot(cells, base), encoding="utf-8")
        print(f"wrote {out / 'table.md'} and {out / 'quality.svg'}", file=sys.stderr)


if __name__ == "__main__":
    main()
