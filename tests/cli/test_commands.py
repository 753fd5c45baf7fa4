"""The command from end to end on the bundled checkpoint, as a user would type it.

Usage: test_commands.py WASTE SOURCE_ROOT BUILD_DIR

Convert, calibrate, merge, verify, info, plan, run, eval, logits, tokenize, detokenize: outputs, exit codes, agreement of
the logits with the golden ones, and that the container's text does not depend on threads, cache or tier.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, print_passed, run  # noqa: E402
from installed import Installed  # noqa: E402

waste, root, build = sys.argv[1], *map(pathlib.Path, sys.argv[2:4])
source = root / "examples/tiny_k3/checkpoint"


def floats(path):
    data = pathlib.Path(path).read_bytes()
    return struct.unpack(f"<{len(data) // 4}f", data)


def relative(a, b):
    scale = max(abs(x) for x in b)
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) / scale


def main():
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="waste-cli-"))
    container = scratch / "tiny.waste"

    made = json.loads(run(waste, "convert", source, container, "--effort", "fast", "--json", "-q").stdout)
    check(made["complete"] and made["layers_total"] == 5, "convert reports five layers")
    check(0.10 < made["relative_error"]["gate"] < 0.22, f"gate error {made['relative_error']}")
    again = run(waste, "convert", source, container, "-q", code=1).stderr
    check("exists" in again, f"a container in the way is an error: {again}")

    verify = json.loads(run(waste, "verify", container, "--source", source, "--json", "-q").stdout)
    check(verify["ok"] and verify["records"] == 120, "verify finds 120 good records")
    info = json.loads(run(waste, "info", container, "--json").stdout)
    check(len(info) > 3, "info prints an object")
    plan = json.loads(run(waste, "plan", container, "--json").stdout)
    check(len(plan) > 3, "plan prints an object")

    text = "In the beginning God created the heaven and the earth."
    ids = run(waste, "tokenize", container, text).stdout.split()
    check(ids == run(waste, "tokenize", source, text).stdout.split(), "source and container tokenize alike")
    check(run(waste, "detokenize", container, *ids).stdout == text, "detokenize gives the text back")

    oracle = json.loads((source / "oracle.json").read_text())
    vocabulary = oracle["shape"][1]
    expected = floats(source / oracle["logits"])
    for n in (1, 24, 160):
        tokens = ",".join(map(str, oracle["tokens"][:n]))
        run(waste, "logits", source, "--tokens", tokens, "--out", scratch / "f32")
        error = relative(floats(scratch / "f32"), expected[(n - 1) * vocabulary : n * vocabulary])
        check(error < 1e-5, f"float logits after {n} tokens differ from the reference by {error}")

    prompt = "And the LORD said unto "
    base = run(waste, "run", container, prompt, "-n", "24").stdout
    check(len(base) > 40, "run prints text")
    for extra in (["--threads", "1"], ["--threads", "3"]):
        check(run(waste, "run", container, prompt, "-n", "24", *extra).stdout == base, f"same text with {extra}")
    # Four experts a token on three threads: the plan holds four records, three are enough.
    told = json.loads(run(waste, "plan", container, "--threads", "3", "--json").stdout)
    check(told["held_records"] == 4, f"an expert whose rows threads share is held: {told['held_records']}")
    for threads, experts in ((1, 1), (2, 2), (3, 3), (3, 4)):
        least = ["--threads", threads, "--cache", experts * told["record_bytes"]]
        check(run(waste, "run", container, prompt, "-n", "24", *least).stdout == base, f"same text with {least}")
    short = run(waste, "run", container, prompt, "--threads", "3", "--cache", 3 * told["record_bytes"] - 1, code=1).stderr
    check("room for 3 records" in short, f"a byte below a record a thread is refused: {short}")
    saved = scratch / "session"
    begun = run(waste, "run", container, prompt, "-n", "10", "--save-session", saved).stdout
    on = run(waste, "run", container, "", "-n", "6", "--load-session", saved, "--save-session", saved).stdout
    end = run(waste, "run", container, "", "-n", "8", "--load-session", saved, "--context", "4000").stdout
    check(begun[:-1] + on[:-1] + end == base, f"a saved session goes on: {begun!r} {on!r} {end!r}")
    foreign = run(waste, "run", source, "", "--load-session", saved, code=1).stderr
    check("another model" in foreign, f"a session of the container is none of the checkpoint: {foreign}")
    tokens = ",".join(ids)
    logits = {}
    for tier in ("baseline", "avx2", "avx512bw", "icelake", "neon64"):
        done = subprocess.run(
            [waste, "logits", container, "--tokens", tokens, "--out", scratch / tier],
            capture_output=True, text=True, env={**os.environ, "WASTE_ARCH": tier})
        if done.returncode == 0:
            logits[tier] = (scratch / tier).read_bytes()
        else:
            check("cannot run" in done.stderr, f"tier {tier}: {done.stderr}")
    fused = {bits for tier, bits in logits.items() if tier != "baseline"}
    check("baseline" in logits and len(fused) <= 1, "tiers with fused multiply-add agree bit for bit")
    bad = run(waste, "run", container, prompt, code=1, env={"WASTE_ARCH": "avx1024"}).stderr
    check("avx1024" in bad, f"an unknown tier is refused: {bad}")

    heldout = scratch / "text.txt"
    heldout.write_text((source / "heldout.txt").read_text()[:8000])
    rates = [json.loads(run(waste, "eval", m, heldout, "--json").stdout)["bits_per_byte"] for m in (source, container)]
    check(0.9 < rates[0] < 1.6 and rates[0] - 0.01 < rates[1] < rates[0] + 0.06, f"bits per byte {rates}")

    coarse = scratch / "coarse.waste"
    made = json.loads(run(waste, "convert", source, coarse, "--effort", "fast", "--substitutes", "--json", "-q").stdout)
    check(made["substitute_bytes"] == 120 * 12288, f"substitutes of 120 experts: {made['substitute_bytes']} bytes")
    check(0.5 < made["relative_substitute_error"]["up"] < 0.6, "a substitute is about half of its expert off")
    verify = json.loads(run(waste, "verify", coarse, "--source", source, "--json", "-q").stdout)
    check(verify["ok"] and verify["records"] == 240, "verify audits substitutes too")
    check(run(waste, "run", coarse, prompt, "-n", "24").stdout == base, "substitutes that nobody asks for change nothing")
    slow = ["eval", coarse, heldout, "--max-tokens", "700", "--cache", "1MB", "--disk-delay", "3", "--json"]
    exact = json.loads(run(waste, *slow).stdout)
    late = json.loads(run(waste, *slow, "--substitute-after", "0").stdout)
    check(exact["cache"]["substituted"] == 0 and late["cache"]["substituted"] > 100, f"counted: {late['cache']}")
    check(exact["bits_per_byte"] < late["bits_per_byte"] < exact["bits_per_byte"] + 0.1, "substitutes cost a little")
    none = run(waste, "run", container, prompt, "--substitute-after", "5", code=1).stderr
    check("convert with --substitutes" in none, f"no substitutes, no answer: {none}")
    floor = json.loads(run(waste, "plan", coarse, "--json").stdout)["floor_bytes"]
    with_them = json.loads(run(waste, "plan", coarse, "--substitutes", "--json").stdout)
    check(with_them["floor_bytes"] == floor + with_them["substitute_bytes"], "substitutes are in the plan")
    check(with_them["substitute_bytes"] == 120 * 12288 + 5 * 3 * 8192, "at their size in memory")
    check(run(waste, "run", coarse, prompt, "-n", "24", "--budget", floor).stdout == base, "the floor runs")
    for more, least in ([], floor), (["--substitute-after", "9"], with_them["floor_bytes"]):
        short = run(waste, "run", coarse, prompt, "--budget", least - 1, *more, code=1).stderr
        check(str(least) in short and "scratch" in short, f"a byte below the floor is refused with the numbers: {short}")

    said = Installed(build, scratch).compile(root / "examples/matvec.cpp", scratch / "matvec")
    check(not said, f"matvec.cpp against the installed library: {said}")
    shown = run(scratch / "matvec", container).stdout
    check(shown.startswith("160 x 128, y[0] = "), f"the example prints {shown!r}")

    bank = container / "experts-L3.bin"
    with open(bank, "r+b") as f:
        f.seek(28672 * 7 + 5000)
        byte = f.read(1)
        f.seek(-1, 1)
        f.write(bytes([byte[0] ^ 0x10]))
    damaged = run(waste, "verify", container, "-q", code=2)
    check("expert 7 of layer 3" in damaged.stdout + damaged.stderr, "verify names the damaged expert")
    (scratch / "some.txt").write_text((source / "calibration.txt").read_text()[:6000])
    calibration = scratch / "tiny.wcal"
    seen = json.loads(
        run(waste, "calibrate", source, scratch / "some.txt", "--out", calibration, "--json", "-q").stdout)
    check(seen["experts"] == 120 and seen["tokens"] > 1000 and seen["expert_block"] > 0, f"calibrate reports {seen}")
    options = ["--format", "vq2r", "--effort", "fast", "--calibration", calibration, "-q"]
    single, merged = scratch / "single.waste", scratch / "merged.waste"
    run(waste, "convert", source, single, *options)
    parts = [scratch / f"part-{which}" for which in ("1-2", "trunk", "3-5")]
    for part in parts:
        run(waste, "convert", source, part, "--layers", part.name[5:], *options)
    run(waste, "convert", "--merge", merged, *parts)
    names = sorted(p.name for p in single.iterdir())
    check("usage.waste" in names and names == sorted(p.name for p in merged.iterdir()), f"merged files {names}")
    for name in names:
        check((single / name).read_bytes() == (merged / name).read_bytes(), f"merged {name} is that of a single run")

    for arguments in (["verify"], ["nonsense"], ["convert", source]):
        run(waste, *arguments, code=64)
    run(waste, "info", scratch / "nowhere", code=1)
    print_passed()


if __name__ == "__main__":
    main()
