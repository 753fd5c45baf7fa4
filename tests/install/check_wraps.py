"""Whether the wraps of subprojects/ are well formed, and build where their archives are at hand.

Usage: check_wraps.py SOURCE_ROOT [DEPENDENCY ...]

Every wrap must pin its archive by SHA-256, come from the project's own release page, have the patch
folder that it names and provide a dependency that meson.build asks for. Archives that are in
subprojects/packagecache (nothing is downloaded here) must have the pinned hash; a program that uses all
of their libraries (or those of the DEPENDENCY arguments) is built with these wraps and nothing else, and
must print what the libraries are for.
"""
import configparser
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# What each library is asked to do: its dependency name, an include, a statement, what that prints.
USES = {
    "eigen3": ("#include <Eigen/Core>",
               'Eigen::Matrix2f m; m << 1, 2, 3, 4; std::printf("%g\\n", (m * m)(1, 1));', "22\n"),
    "nlohmann_json": ("#include <nlohmann/json.hpp>",
                      'std::printf("%d\\n", nlohmann::json::parse("[1,{\\"a\\":41}]")[1]["a"].get<int>() + 1);', "42\n"),
    "libpcre2-8": ("#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>", r"""
  int code; PCRE2_SIZE at; std::uint32_t jit = 0;
  auto* re = pcre2_compile((PCRE2_SPTR)"\\p{Lu}\\p{Ll}+", PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, nullptr);
  auto* match = pcre2_match_data_create_from_pattern(re, nullptr);
  pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
  pcre2_config(PCRE2_CONFIG_JIT, &jit);
  std::printf("%d %u\n", pcre2_match(re, (PCRE2_SPTR)"a\xc3\x89t\xc3\xa9", 6, 0, 0, match, nullptr), jit);
  std::printf("%d\n", (int)pcre2_get_ovector_pointer(match)[0]);
  pcre2_match_data_free(match); pcre2_code_free(re);""", "1 1\n1\n"),
    "benchmark": ("#include <benchmark/benchmark.h>",
                  'int n = 0; benchmark::RegisterBenchmark("n", [&](benchmark::State& s) { for (auto _ : s) ++n; })->Iterations(5);\n'
                  "  struct Quiet : benchmark::BenchmarkReporter { bool ReportContext(const Context&) override { return true; }\n"
                  "    void ReportRuns(const std::vector<Run>&) override {} } quiet;\n"
                  '  benchmark::RunSpecifiedBenchmarks(&quiet); std::printf("%d\\n", n);', "5\n"),
    "xsimd": ("#include <xsimd/xsimd.hpp>",
              'std::printf("%g\\n", xsimd::batch<float>(2.5f).get(0));', "2.5\n"),
    "zlib": ("#include <zlib.h>",
             'std::printf("%08lx\\n", crc32(0, reinterpret_cast<const Bytef*>("123456789"), 9));', "cbf43926\n"),
    "CLI11": ("#include <CLI/CLI.hpp>",
              'CLI::App app; int n = 0; app.add_option("--n", n); app.parse("--n 7"); std::printf("%d\\n", n);', "7\n"),
    "catch2-with-main": ("#include <catch2/catch_version.hpp>",
                         'std::printf("%u\\n", Catch::libraryVersion().majorVersion);', "3\n"),
}
HOSTS = re.compile(r"https://(github\.com|gitlab\.com)/[\w.-]+/[\w.-]+/(-/)?(archive|releases/download)/[\w./-]+\.tar\.(gz|bz2|xz)")


def read_wraps(folder):
    for path in sorted(folder.glob("*.wrap")):
        wrap = configparser.ConfigParser(interpolation=None)
        wrap.optionxform = str
        wrap.read(path)
        yield path, wrap["wrap-file"], dict(wrap["provide"])


def check(folder, asked):
    problems, here = [], {}
    for path, wrap, provides in read_wraps(folder):
        if not HOSTS.fullmatch(wrap["source_url"]):
            problems.append(f"{path.name}: source_url {wrap['source_url']} is no release of the project")
        if not re.fullmatch("[0-9a-f]{64}", wrap["source_hash"]):
            problems.append(f"{path.name}: source_hash is no SHA-256")
        patch = wrap.get("patch_directory")
        if patch and not (folder / "packagefiles" / patch / "meson.build").exists():
            problems.append(f"{path.name}: no packagefiles/{patch}/meson.build")
        if not any(f"'{name}'" in asked for name in provides):
            problems.append(f"{path.name}: provides {', '.join(provides)}, which no meson.build asks for")
        archive = folder / "packagecache" / wrap["source_filename"]
        if archive.exists():
            got = hashlib.sha256(archive.read_bytes()).hexdigest()
            if got != wrap["source_hash"]:
                problems.append(f"{archive.name} has the hash {got}, {path.name} wants {wrap['source_hash']}")
            here.update((name, path) for name in provides if name in USES)
    return problems, here


def run(*command, cwd):
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
    return done.stdout


def build(folder, names, scratch):
    uses = [USES[n] for n in names]
    program = ["#include <cstdint>", "#include <cstdio>", "#include <vector>", *(u[0] for u in uses), "int main() {"]
    program += [f"  {{ {u[1]} }}" for u in uses] + ["}"]
    (scratch / "main.cpp").write_text("\n".join(program))
    deps = ", ".join(f"dependency('{n}')" for n in names)
    (scratch / "meson.build").write_text(
        "project('user', 'cpp', default_options : ['cpp_std=c++20', 'optimization=1'])\n"
        f"executable('user', 'main.cpp', dependencies : [{deps}])\n")
    shutil.copytree(folder, scratch / "subprojects", ignore=lambda d, names: [
        n for n in names if pathlib.Path(d) == folder and (folder / n).is_dir() and n not in ("packagefiles", "packagecache")])
    run("meson", "setup", "--wrap-mode=nodownload", "build", f"--force-fallback-for={','.join(names)}", cwd=scratch)
    run("ninja", "-C", "build", "-j2", "user", cwd=scratch)
    got, want = run("build/user", cwd=scratch), "".join(u[2] for u in uses)
    if got != want:
        sys.exit(f"the program on the wraps of {', '.join(names)} printed {got!r}, wanted {want!r}")
    print(f"built from their wraps: {', '.join(names)}")


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    folder = root / "subprojects"
    asked = "".join((root / p).read_text() for p in ("meson.build", "tests/meson.build", "bench/meson.build"))
    problems, here = check(folder, asked)
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(list(folder.glob('*.wrap')))} wraps are well formed")
    wanted = sys.argv[2:] or [n for n in here if n != "catch2-with-main"]
    absent = sorted(set(USES) - set(here))
    if absent:
        print(f"SKIPPED: the archives of {', '.join(absent)} are not in subprojects/packagecache, so their wraps were not built")
    if wanted:
        with tempfile.TemporaryDirectory() as scratch:
            build(folder, wanted, pathlib.Path(scratch))


if __name__ == "__main__":
    os.environ.pop("PKG_CONFIG_PATH", None)
    main()
