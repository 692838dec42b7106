#!/usr/bin/env python3
"""Static checks of the GPU code in programs or object files: right architecture, no spills, no
calls into the driver's run time, shared memory within the architecture's limit.

usage: tools/check_cubins.py FILE... [--arch sm_121a] [--cuobjdump PATH] [--list]

Registers that spill, stacks and calls of __cuda_syscall_* (what a multicast copy, printf or malloc
become) cost more than any other mistake. Shared memory that a launch asks for is no part of the
code: the driver refuses a launch that wants more than the GPU has.
"""
import argparse
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED_BYTES = {"sm_90a": 227 << 10, "sm_121a": 99 << 10}  # of one block
FORBIDDEN = ("__cuda_syscall", "vprintf", "malloc", "__assertfail")


def resources(cuobjdump, program):
    """(architecture, mangled name, {REG, STACK, SHARED, LOCAL}) of each kernel."""
    text = subprocess.run([cuobjdump, "-res-usage", program], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    arch = name = None
    for line in text.splitlines():
        if line.startswith("arch ="):
            arch = line.split("=")[1].strip()
        elif line.startswith(" Function "):
            name = line.split()[1].rstrip(":")
        elif name and "REG:" in line:
            yield arch, name, {k: int(v) for k, v in re.findall(r"([A-Z]+):(\d+)", line)}
            name = None


def symbols(cubin):
    """Names in the symbol table of an ELF file."""
    data = cubin.read_bytes()
    sections_at, = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, sections_at + i * size)
                for i in range(count)]
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name_at = names + struct.unpack_from("<I", data, at)[0]
            yield data[name_at:data.index(b"\0", name_at)].decode()


def forbidden_symbols(cuobjdump, program):
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([cuobjdump, "-xelf", "all", str(pathlib.Path(program).resolve())],
                       check=True, cwd=directory, stdout=subprocess.DEVNULL)
        for cubin in sorted(pathlib.Path(directory).glob("*.cubin")):
            for name in symbols(cubin):
                if name.startswith(FORBIDDEN):
                    yield cubin.name, name


def demangled(name):
    try:
        return subprocess.run(["c++filt", name], check=True, text=True,
                              stdout=subprocess.PIPE).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return name


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--arch", default="sm_121a", choices=SHARED_BYTES)
    parser.add_argument("--cuobjdump", default=str(ROOT / "build/cuobjdump/bin/cuobjdump"))
    parser.add_argument("--list", action="store_true", help="every kernel")
    args = parser.parse_args()

    faults, kernels, most = [], 0, {"REG": 0, "SHARED": 0}
    found = [use for file in args.files for use in resources(args.cuobjdump, file)]
    for arch, name, use in found:
        kernels += 1
        most = {key: max(value, use[key]) for key, value in most.items()}
        if args.list:
            print(f"{use['REG']:4} registers {use['SHARED']:6} bytes  {demangled(name)[:150]}")
        if arch != args.arch:
            faults.append(f"built for {arch}: {demangled(name)}")
        for what in ("STACK", "LOCAL"):
            if use[what] > 0:
                faults.append(f"{use[what]} bytes of {what.lower()}: {demangled(name)}")
        if use["SHARED"] > SHARED_BYTES[args.arch]:
            faults.append(f"{use['SHARED']} bytes of shared memory: {demangled(name)}")
    faults += [f"{cubin} calls {name}" for file in args.files
               for cubin, name in forbidden_symbols(args.cuobjdump, file)]
    if kernels == 0:
        faults.append("there is no GPU code in it")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{kernels} kernels for {args.arch}, at most {most['REG']} registers and "
          f"{most['SHARED']} bytes of static shared memory; {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
