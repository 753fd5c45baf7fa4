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
        message = waste_run("convert", root / "examples/tiny_k3/checkpoint", scratch / "again" / "striped.waste", "-q",
                      "--drives", scratch / "drive", code=1).stderr
        check("experts-L1.bin" in message, f"banks of another container are not taken over: {message}")


def main():
    with tempfile.TemporaryDirectory(prefix="waste-streaming-") as folder:
        scratch = pathlib.Path(folder)
        container = scratch / "tiny.waste"
        waste_run("convert", root / "examples/tiny_k3/checkpoint", container, "--effort", "fast", "-q")
        prediction(container, scratch)
        drives(container, scratch)
    print_passed()


main()
