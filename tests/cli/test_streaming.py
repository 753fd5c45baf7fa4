"""Streaming by the command: a recorded routing, and what it predicts of the run that recorded it.

Usage: test_streaming.py WASTE SOURCE_ROOT
"""
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, print_passed, run  # noqa: E402

waste, root = sys.argv[1], pathlib.Path(sys.argv[2])


def waste_run(*arguments, code=0):
    return run(waste, *arguments, code=code)


def prediction(container, scratch):
    """The rate predicted from a run's trace is the rate of the run, to the last hit."""
    trace = scratch / "trace.jsonl"
    tokens, warmup = 30, 6
    for options in ([], ["--readers", "0"], ["--read-depth", "3", "--cache-policy", "lru"]):
        shared = [o for o in options]
        bench = json.loads(waste_run("bench", container, "--share", "0.3", "--threads", "1", "-n", tokens, "--warmup", warmup,
                               "--record-trace", trace, "--json", "-q", *options).stdout)
        arm, lines = bench["arms"][0], trace.read_text().splitlines()
        check(len(lines) == tokens + warmup, "one line a token")
        chosen = [json.loads(line)["layers"] for line in lines]
        per_token = sum(map(len, chosen[0]))
        check(all(sum(map(len, c)) == per_token for c in chosen), "as many experts each token")
        plan = json.loads(waste_run("plan", container, "--context", tokens + warmup, "--threads", "1", "--budget",
                              bench["budget_bytes"], "--disk", "2", "--trace", trace, "--skip", warmup, "--json",
                              *shared).stdout)
        told = plan["prediction"]
        check(told["trace_records"] == arm["cache_records"], f"the replay has the run's cache: {told}, {arm}")
        demands = tokens * per_token
        check(round(told["hit_rate"] * demands, 6) == round(arm["hit_rate"] * demands, 6),
              f"{options}: predicted {told['hit_rate']}, was {arm['hit_rate']}")
        check(0 < told["hit_rate"] < 1, "a rate that could differ")
        if options == ["--readers", "0"]:  # nothing is read that nobody asks for
            check(abs(told["read_bytes_per_token"] / (arm["gb_per_token"] * 1e9) - 1) < 1e-9, "bytes a token")
    check("--skip" in waste_run("plan", container, "--disk", "1", "--trace", trace, "--skip", "36", code=1).stderr,
          "nothing left to predict is an error")
    waste_run("run", container, "In the beginning", "-n", "5", "--ignore-eos", "--record-trace", trace)
    prompt = len(waste_run("tokenize", container, "In the beginning").stdout.split())
    check(len(trace.read_text().splitlines()) == prompt + 4, "run records the prompt's tokens and those it fed")


def drives(container, scratch):
    """A striped container has the same bytes and the same answers."""
    shared = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="waste-drive-", dir=shared if shared.is_dir() else None) as other:
        striped = scratch / "striped.waste"
        waste_run("convert", root / "examples/tiny_k3/checkpoint", striped, "--effort", "fast", "-q", "--drives",
            f"{scratch / 'drive'},{other}")
        check((striped / "experts-L1.bin").is_symlink() and (striped / "experts-L2.bin").is_symlink(), "links to banks")
        for path in container.iterdir():
            check(path.read_bytes() == (striped / path.name).read_bytes(), f"{path.name} is the same")
        check(json.loads(waste_run("verify", striped, "--json", "-q").stdout)["ok"], "verify follows links")
        prompt = ("In the beginning", "-n", "8", "--ignore-eos", "--cache", "400kB")
        check(waste_run("run", striped, *prompt).stdout == waste_run("run", container, *prompt).stdout, "run gives the same text")
        info = json.loads(waste_run("info", striped, "--json").stdout)
        homes = {f["directory"]: f["banks"] for f in info["bank_folders"]}
        banks = len(list(container.glob("experts-L*.bin")))
        check(homes == {str((scratch / "drive" / "striped.waste").resolve()): (banks + 1) // 2,
                        str((pathlib.Path(other) / "striped.waste").resolve()): banks // 2}, f"info knows the folders: {homes}")
        check(sum(f["bytes"] for f in info["bank_folders"]) == info["expert_bytes"], "bytes of each folder")
        check(info["drives"] == len({f["device"] for f in info["bank_folders"]}), "drives are file systems")
        text = waste_run("info", striped).stdout
        check(all(f"in {home}" in text for home in homes), "info shows the folders")
        check("drives" not in waste_run("info", container).stdout, "one folder is not worth a line")
        message = waste_run("convert", root / "examples/tiny_k3/checkpoint", scratch / "again" / "striped.waste", "-q",
                      "--drives", scratch / "drive", code=1).stderr
        check("experts-L1.bin" in message, f"banks of another container are not taken over: {message}")


def rings(container):
    """Reads through io_uring give the same text; where there is none, that is said."""
    prompt = ("In the beginning", "-n", "8", "--ignore-eos", "--cache", "400kB")
    want = waste_run("run", container, *prompt)
    got = waste_run("run", container, *prompt, "--io", "uring")
    check(got.stdout == want.stdout, "the same text")
    compared = ("bench", container, "--share", "0.3", "-n", "4", "--warmup", "1", "-q", "--compare", "uring")
    arms = json.loads(waste_run(*compared, "--json").stdout)["arms"]
    check([a["name"] for a in arms] == ["pread", "io_uring"] and arms[0]["io"] == "pread", f"two arms: {arms}")
    announced = "reading with pread: io_uring" in got.stderr
    check(announced == (arms[1]["io"] == "pread"), f"a fallback is announced: {got.stderr}")
    check(("NOT with io_uring" in waste_run(*compared).stdout) == announced, "by bench too")
    for options, why in ((["--readers", "0"], "no readers"), (["--disk-delay", "0.1"], "one by one")):
        text = waste_run("bench", container, "--share", "0.3", "-n", "1", "--warmup", "0", "-q", "--io", "uring", *options).stdout
        check("NOT with io_uring" in text and why in text, f"why not: {text}")


def synthetic_substitutes(scratch):
    """Substitutes of a synthetic container are whole, and used."""
    plain, both = scratch / "plain.waste", scratch / "both.waste"
    shape = ("--layers", "2", "--experts", "8", "--vocab", "256", "-q")
    waste_run("synth", plain, *shape)
    waste_run("synth", both, *shape, "--substitutes")
    more = sorted(p.name for p in both.iterdir() if not (plain / p.name).exists())
    check(more == ["subs-L1.bin", "subs-codebooks.bin"], f"what --substitutes adds: {more}")
    check(json.loads(waste_run("verify", both, "--json", "-q").stdout)["ok"], "verify finds nothing")
    info = [json.loads(waste_run("info", c, "--json").stdout) for c in (plain, both)]
    check(info[0]["substitute_bytes"] is None and info[1]["substitute_bytes"] == sum((both / n).stat().st_size for n in more),
          "info tells who has substitutes")
    arm = json.loads(waste_run("bench", both, "--share", "0.5", "-n", "2", "--warmup", "0", "--disk-delay", "50",
                               "--substitute-after", "0", "--json", "-q").stdout)["arms"][0]
    check(arm["substituted_per_token"] > 0, f"substitutes answer: {arm}")
    check("--substitutes" in waste_run("bench", plain, "--substitute-after", "0", "-n", "1", code=1).stderr, "none to load")


def main():
    with tempfile.TemporaryDirectory(prefix="waste-streaming-") as folder:
        scratch = pathlib.Path(folder)
        container = scratch / "tiny.waste"
        waste_run("convert", root / "examples/tiny_k3/checkpoint", container, "--effort", "fast", "-q")
        prediction(container, scratch)
        drives(container, scratch)
        rings(container)
        synthetic_substitutes(scratch)
    print_passed()


main()
