"""The library as its users have it: installed, and found by pkg-config.

Import it after putting this folder on sys.path.
"""
import os
import pathlib
import subprocess

COMPILE = [*os.environ.get("CXX", "g++").split(), "-std=c++20", "-O1", "-ffp-contract=off", "-Wall", "-Wextra"]


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


class Installed:
    """What `meson install` of a finished build puts into a folder of its own."""

    def __init__(self, build, folder):
        stage = pathlib.Path(folder) / "stage"
        run("meson", "install", "-C", build, "--no-rebuild", "--destdir", stage)
        (pc,) = stage.rglob("waste.pc")
        text = pc.read_text()
        installed = text.split("prefix=")[1].splitlines()[0]
        self.prefix = stage / installed.lstrip("/")
        pc.write_text(text.replace(f"prefix={installed}", f"prefix={self.prefix}", 1))
        self.env = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent)}
        self.version = self.pkg_config("--modversion").strip()
        self.flags = self.pkg_config("--cflags", "--libs").split()

    def pkg_config(self, *asked):
        return run("pkg-config", *asked, "waste", env=self.env)

    def compile(self, source, program):
        """What the compiler said that was not welcome: empty where `source` built without a word."""
        done = subprocess.run([str(c) for c in (*COMPILE, source, "-o", program, *self.flags)], capture_output=True, text=True)
        return done.stderr or ("" if done.returncode == 0 else f"exit code {done.returncode}")
