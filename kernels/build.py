#!/usr/bin/env python3
"""Compiles the kernels to the machine code in kernels/bin. Nothing of CUDA needs to be installed.

  build.py          rebuild kernels/bin
  build.py --check  build into a temporary folder, and say what differs from kernels/bin (exit 1)

The compilers are NVRTC releases of NVIDIA's from PyPI, pinned by their checksums and kept in .tools/nvrtc
(x86-64 only). They give the same bytes for the same sources. Kernels use no header but their own.
"""

import argparse
import ctypes
import hashlib
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = HERE.parent / ".tools" / "nvrtc"

# A wheel, its version and its SHA-256.
NVRTC_12_4 = (
    "nvidia-cuda-nvrtc-cu12",
    "12.4.127",
    "a178759ebb095827bd30ef56598ec182b85547f1508941a3d560eb7ea1fbf338",
)
NVRTC_12_9 = (
    "nvidia-cuda-nvrtc-cu12",
    "12.9.86",
    "210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4",
)
PTXAS = (
    "nvidia-cuda-nvcc-cu12",
    "12.4.131",
    "e4c9a35435c3b0e36c6397c5696334c9ea6650e524736cbd1c5d345ea099bb04",
)

# What each compiler makes. 12.4 is the oldest that knows all but Blackwell, which needs 12.9.
BUILDS = {
    NVRTC_12_4: ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "compute_75"],
    NVRTC_12_9: ["sm_100a", "sm_103", "sm_120"],
}

# PTX says the least version of its language that it needs, so that drivers from R535 take it (they know 8.2).
# Non-caching loads (L1::no_allocate) ask for 7.4.
PTX_VERSION = "7.4"

OPTIONS = ["--std=c++17", "--fmad=false"]


def say(text):
    print(text, file=sys.stderr)


def die(text):
    sys.exit(f"error: {text}")


def installed(wheel):
    """Folder with the contents of the wheel."""
    name, version, sha256 = wheel
    folder = TOOLS / f"{name}-{version}"
    done = folder / "installed"
    if done.exists() and done.read_text() == sha256:
        return folder
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        die("pip is missing (Debian: apt-get install python3-pip)")
    say(f"installing {name} {version} into {folder}")
    with tempfile.TemporaryDirectory() as temporary:
        wanted = pathlib.Path(temporary) / "requirements.txt"
        wanted.write_text(f"{name}=={version} --hash=sha256:{sha256}\n")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--upgrade", "--require-hashes", "--target", str(folder), "-r", str(wanted)]
        quiet = os.environ | {"PIP_ROOT_USER_ACTION": "ignore"}
        if subprocess.run(command, env=quiet).returncode:
            die(f"pip could not install {name} {version}")
    done.write_text(sha256)
    return folder


def sources():
    """All that the machine code follows from, by name."""
    files = [p for p in HERE.iterdir() if p.suffix in (".cu", ".h", ".py")]
    return {path.name: path.read_bytes() for path in sorted(files)}


def checked(nvrtc, result, what):
    if result:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"{what}: {nvrtc.nvrtcGetErrorString(result).decode()}")


def fetched(nvrtc, program, what):
    """What nvrtcGet<what> gives."""
    size = ctypes.c_size_t()
    checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
    data = ctypes.create_string_buffer(size.value)
    checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, data), what)
    return data.raw


def compiled(nvrtc, target):
    """Machine code for sm_*, PTX for compute_*. Sources go in by name, so that no path gets into it."""
    texts = sources()
    headers = [name for name in texts if name != "suite.cu" and not name.endswith(".py")]
    strings = ctypes.c_char_p * len(headers)
    program = ctypes.c_void_p()
    result = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program),
        texts["suite.cu"],
        b"suite.cu",
        len(headers),
        strings(*[texts[name] for name in headers]),
        strings(*[name.encode() for name in headers]),
    )
    checked(nvrtc, result, "nvrtcCreateProgram")
    options = [f"--gpu-architecture={target}".encode()] + [option.encode() for option in OPTIONS]
    result = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = fetched(nvrtc, program, "ProgramLog").rstrip(b"\0").decode().strip()
    if log or result:
        raise RuntimeError(f"{target}: {log}")
    if target.startswith("sm_"):
        return fetched(nvrtc, program, "CUBIN")
    return lowered(fetched(nvrtc, program, "PTX").rstrip(b"\0").decode()).encode()


def lowered(ptx):
    ptx, count = re.subn(r"^\.version \d+\.\d+$", f".version {PTX_VERSION}", ptx, flags=re.M)
    if count != 1:
        raise RuntimeError("PTX without a version")
    return ptx.strip() + "\n"


def file_name(target):
    return f"{target}.cubin" if target.startswith("sm_") else f"{target}.ptx"


def compile_all(library, targets, output):
    """Runs in a process of its own: two NVRTC releases do not live in one."""
    nvrtc = ctypes.CDLL(library)
    for target in targets:
        (output / file_name(target)).write_bytes(compiled(nvrtc, target))


def assemble(ptx):
    """PTX must be what an assembler takes; the driver's comes from the same source."""
    ptxas = installed(PTXAS) / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
    ptxas.chmod(0o755)
    command = [str(ptxas), "--gpu-name", "sm_75", "--output-file", "/dev/null", str(ptx)]
    if subprocess.run(command).returncode:
        die("ptxas refuses the PTX")


def build(output):
    for wheel, targets in BUILDS.items():
        library = installed(wheel) / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
        arguments = (str(library), targets, output)
        worker = multiprocessing.get_context("spawn").Process(target=compile_all, args=arguments)
        worker.start()
        worker.join()
        if worker.exitcode:
            die("the kernels do not compile")
    for ptx in output.glob("*.ptx"):
        assemble(ptx)
    names = [file_name(target) for targets in BUILDS.values() for target in targets]
    sums = {name: hashlib.sha256(text).hexdigest() for name, text in sources().items()}
    for name in sorted(names):
        sums[f"bin/{name}"] = hashlib.sha256((output / name).read_bytes()).hexdigest()
    lines = [f"{sha256}  {name}\n" for name, sha256 in sums.items()]
    (output / "SHA256SUMS").write_text("".join(lines))
    return sorted(names) + ["SHA256SUMS"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with kernels/bin and change nothing")
    check = parser.parse_args().check
    kept = HERE / "bin"
    with tempfile.TemporaryDirectory() as temporary:
        output = pathlib.Path(temporary)
        names = build(output)
        if check:
            there = {path.name for path in kept.iterdir()} if kept.is_dir() else set()
            wrong = sorted(there.symmetric_difference(names))
            for name in sorted(there.intersection(names)):
                if (kept / name).read_bytes() != (output / name).read_bytes():
                    wrong.append(name)
            if wrong:
                die(f"not what the sources give, `make kernels` rebuilds them: {', '.join(wrong)}")
            say(f"kernels/bin is what the sources give: {len(names)} files")
            return
        kept.mkdir(exist_ok=True)
        for path in kept.iterdir():
            path.unlink()
        for name in names:
            (kept / name).write_bytes((output / name).read_bytes())
        say(f"kernels/bin: {', '.join(names)}")


if __name__ == "__main__":
    main()
