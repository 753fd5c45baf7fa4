"""Installs the library into a scratch prefix and uses it from outside the tree, four ways.

Usage: check_install.py SOURCE_ROOT BUILD_DIR

A program that opens a container, multiplies and prints is built with pkg-config, with CMake (where
there is one, and there the installed examples/custom_forward.cpp besides) and by `meson setup` with waste as a
subproject; a kernel-only program is compiled with nothing but `-I include`. Each must run and print the
same, and all must say meson.build's version. With --build-subproject the Meson subproject is built and
run too (minutes), else configured.
"""
import pathlib
import platform
import re
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from installed import Installed, run  # noqa: E402

PROGRAM = r"""
#include <cstdio>
#include <vector>
#include <waste/waste.hpp>
int main() {
  const std::vector<float> w = {1, 2, 3, 4, 5, 6}, x = {1, 10, 100};
  waste::TrunkMatrix m;
  m.payload = reinterpret_cast<const std::uint8_t*>(w.data());
  m.n_rows = 2;
  m.n_cols = 3;
  std::vector<float> y(2);
  waste::matvec(m, x, y);
  std::printf("%s %g %g\n", waste::version_string, y[0], y[1]);
  const auto refused = [](auto open) {
    try {
      open();
    } catch (const waste::Error& e) {
      std::printf("%s\n", std::string(waste::to_string(e.code())).c_str());
    }
  };
  refused([] { waste::Container::open("/nonexistent"); });
  refused([] { waste::text::Tokenizer::open("/nonexistent"); });
}
"""
KERNEL_ONLY = r"""
#include <cstdio>
#include <vector>
#include <waste/arch/tags.hpp>
#include <waste/kernels/group_matvec.hpp>
int main() {
  const std::vector<float> w = {1, 2, 3, 4, 5, 6}, x = {1, 10, 100};
  waste::TrunkMatrix m;
  m.payload = reinterpret_cast<const std::uint8_t*>(w.data());
  m.n_rows = 2;
  m.n_cols = 3;
  std::vector<float> y(2);
  waste::kernels::trunk_matvec{}(waste::arch::baseline{}, m, x.data(), y.data(), 0, 2);
  std::printf("%g %g\n", y[0], y[1]);
}
"""
CMAKE = """cmake_minimum_required(VERSION 3.18)
project(user CXX)
find_package(waste %s REQUIRED)
find_package(waste 99.0 QUIET)
if(waste_FOUND)
  message(FATAL_ERROR "version 99.0 was found")
endif()
find_package(waste %s EXACT REQUIRED)
add_executable(user main.cpp)
target_link_libraries(user waste::waste)
add_executable(custom_forward %s/share/doc/waste/examples/custom_forward.cpp)
target_link_libraries(custom_forward waste::waste)
"""
MESON = """project('user', 'cpp', default_options : ['cpp_std=c++20', 'buildtype=release'])
executable('user', 'main.cpp', dependencies : dependency('waste'))
"""
# A wrap that names the variable, and one that relies on meson.override_dependency.
WRAPS = ("waste = waste_dep", "dependency_names = waste")
WRAP = "[wrap-file]\ndirectory = waste\n\n[provide]\n"


def expect(what, program, want):
    got = run(program)
    if got != want:
        sys.exit(f"{what}: got {got!r}, wanted {want!r}")
    print(f"{what}: ok")


def main():
    root, build = (pathlib.Path(p).resolve() for p in sys.argv[1:3])
    version = (root / "meson.build").read_text().split("version : '")[1].split("'")[0]
    want = f"{version} 321 654\nnot_found\nnot_found\n"
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        installed = Installed(build, scratch)
        if installed.version != version:
            sys.exit(f"pkg-config says version {installed.version}, meson.build {version}")
        (scratch / "main.cpp").write_text(PROGRAM)
        said = installed.compile(scratch / "main.cpp", scratch / "pc")
        if said:
            sys.exit(f"pkg-config: {said}")
        expect("pkg-config", scratch / "pc", want)

        if shutil.which("cmake"):
            series = version.rpartition(".")[0]
            (scratch / "CMakeLists.txt").write_text(CMAKE % (series, version, installed.prefix))
            run("cmake", "-G", "Ninja", "-S", scratch, "-B", scratch / "cmake", f"-DCMAKE_PREFIX_PATH={installed.prefix}")
            run("cmake", "--build", scratch / "cmake")
            expect("CMake", scratch / "cmake" / "user", want)
            forward = run(scratch / "cmake" / "custom_forward", root / "tests/data/golden/olmoe.waste", "1,2,3")
            if not re.fullmatch(r"(\d+ \(-?\d+\.\d{4}\)\n){3}", forward):
                sys.exit(f"custom_forward built with CMake: {forward!r}")
            print("CMake, examples/custom_forward.cpp: ok")
        else:
            print("SKIPPED: no cmake here, so its package was not tried")

        (scratch / "kernel.cpp").write_text(KERNEL_ONLY)
        eigen = run("pkg-config", "--cflags", "xsimd").split()
        run("g++", "-std=c++20", "-O1", "-I", root / "include", *eigen, scratch / "kernel.cpp", "-o", scratch / "kernel")
        expect("headers alone", scratch / "kernel", "321 654\n")
        if platform.machine() == "x86_64":  # linked, not run: this CPU may lack it
            (scratch / "avx2.cpp").write_text(KERNEL_ONLY.replace("baseline", "avx2"))
            run("g++", "-std=c++20", "-O1", "-march=x86-64-v3", "-I", root / "include", *eigen, scratch / "avx2.cpp", "-o", scratch / "avx2")
            print("headers alone, avx2: linked")

        user = scratch / "user"
        (user / "subprojects").mkdir(parents=True)
        (user / "main.cpp").write_text(PROGRAM)
        (user / "meson.build").write_text(MESON)
        (user / "subprojects" / "waste").symlink_to(root)
        for provide in WRAPS:
            (user / "subprojects" / "waste.wrap").write_text(WRAP + provide + "\n")
            shutil.rmtree(user / "build", ignore_errors=True)
            run("meson", "setup", "--wrap-mode=nodownload", "--force-fallback-for=waste", user / "build", user)
            print(f"Meson subproject, {provide}: configured")
        if "--build-subproject" in sys.argv:
            run("ninja", "-C", user / "build")
            expect("Meson subproject", user / "build" / "user", want)


if __name__ == "__main__":
    main()
