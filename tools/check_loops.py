#!/usr/bin/env python3
"""What the inner loops of kernels cost an SM by their machine code, held to committed bounds.

usage: tools/check_loops.py OBJECT... [--bounds tools/loop_bounds.json] [--update] [--list]

Of each innermost loop: instructions by pipe, matrix operations, bytes of shared and global memory,
and from them the clocks that one trip of all its warps takes of an SM's issue slots, shared memory
and tensor pipe. The largest bounds it from below; latency, bank conflicts and DRAM are not seen.
What exceeds the bounds file by a tenth, in instructions or in clocks, is a fault, and so is a loop
that is gone or multiplies otherwise; --update writes the file anew. Waits for a barrier are no
loops of their own, nor are loops that hold EXIT: retries that ptxas puts behind the end. Both sides
of a branch within a loop are counted.

The rates are GB10's as published for its family (docs/gpu.md), none measured there.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ROOT / "build/cuobjdump/bin"

# Of one SM and clock: FLOP of each matrix instruction, bytes of shared memory, warp instructions;
# bytes of DRAM: 233 GB/s over 48 SMs at 2.4 GHz.
RATES = {"HMMA": 1024, "IMMA": 2048, "QMMA": 2048, "QMMA.SF": 2048, "OMMA.SF": 4096,
         "shared": 128, "issue": 4, "dram": 2.02}
FLOP = {"1688": 2 * 16 * 8 * 8, "16816": 2 * 16 * 8 * 16, "16832": 2 * 16 * 8 * 32,
        "16864": 2 * 16 * 8 * 64}
TENSOR = ("HMMA", "IMMA", "QMMA", "OMMA")
MEMORY = ("LDS", "LDSM", "STS", "STSM", "LDG", "LD", "LDGSTS", "STG", "ST", "RED", "ATOM", "ATOMG",
          "ATOMS", "SHFL", "LDL", "STL", "UBLKCP")
FLOATS = ("FFMA", "FADD", "FMUL", "IMAD", "HFMA2", "HADD2", "HMUL2", "IDP", "MOV")
SLOW = ("MUFU", "I2F", "F2I", "F2F", "POPC", "FLO", "BREV")
CONTROL = ("BRA", "BSSY", "BSYNC", "BAR", "SYNCS", "WARPSYNC", "NOP", "EXIT", "DEPBAR", "LDGDEPBAR",
           "ARRIVES", "VOTE", "VOTEU", "YIELD", "CALL", "RET", "R2UR", "S2R", "S2UR", "CS2R")
SLACK = 1.1  # what a loop may grow by
FEWEST = 24  # instructions of a loop without products, to be looked at


Instruction = collections.namedtuple("Instruction", "address opcode operands guard")


def kernels(listing):
    """(name, [Instruction]) of each kernel in what cuobjdump -sass prints."""
    name, code = None, []
    for line in listing.splitlines():
        if "Function :" in line:
            if name:
                yield name, code
            name, code = line.split(":", 1)[1].strip(), []
            continue
        found = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);", line)
        if found and name:
            code.append(Instruction(int(found[1], 16), found[3], found[4],
                                    (found[2] or "").strip()))
    if name:
        yield name, code


def innermost_loops(code):
    """Index ranges, both ends included: from a backward branch's target to the branch."""
    place = {at.address: i for i, at in enumerate(code)}
    loops = set()
    for i, at in enumerate(code):
        target = re.search(r"0x([0-9a-f]+)\s*$", at.operands)
        if at.opcode.split(".")[0] == "BRA" and target and int(target[1], 16) < at.address:
            loops.add((place[int(target[1], 16)], i))
    def is_wait(a, b):  # a barrier asked again until it says yes
        return b - a < 12 and any(at.opcode.startswith("SYNCS") for at in code[a:b + 1])
    loops = {(a, b) for a, b in loops if not is_wait(a, b) and
             not any(at.opcode == "EXIT" for at in code[a:b + 1])}
    return sorted(l for l in loops if not any(
        o != l and l[0] <= o[0] and o[1] <= l[1] for o in loops))


def width(opcode):
    for suffix, size in ((".256", 32), (".128", 16), (".64", 8), (".U8", 1), (".S8", 1),
                         (".U16", 2), (".S16", 2)):
        if suffix in opcode:
            return size
    return 4


def measure(code):
    """What one warp does in one trip."""
    pipes, matrix, flop = collections.Counter(), collections.Counter(), collections.Counter()
    shared = from_memory = 0
    for _, opcode, _, _ in code:
        base = opcode.split(".")[0]
        if base in TENSOR:
            kind = base + (".SF" if ".SF" in opcode else "")
            matrix[kind] += 1
            flop[kind] += next((FLOP[s] for s in opcode.split(".") if s in FLOP), 0)
            pipes["tensor"] += 1
        elif base in MEMORY:
            pipes["memory"] += 1
            if base in ("LDSM", "STSM"):
                shared += 128 * (4 if ".4" in opcode else 2 if ".2" in opcode else 1)
            elif base in ("LDS", "STS", "LDGSTS"):
                # A word of 4 bytes by a whole warp is often the same for some lanes: 128 at most.
                shared += 32 * width(opcode)
            if base in ("LDG", "LD", "LDGSTS"):
                from_memory += 32 * width(opcode)
        elif base in SLOW:
            pipes["slow"] += 1
        elif base in FLOATS:
            pipes["float"] += 1
        elif base in CONTROL:
            pipes["control"] += 1
        elif base.startswith("U"):
            pipes["uniform"] += 1
        else:
            pipes["integer"] += 1
    return {"instructions": len(code), "pipes": dict(sorted(pipes.items())),
            "matrix": dict(sorted(matrix.items())), "flop": flop,
            "shared_bytes": shared, "global_bytes": from_memory}


def clocks(loop, warps):
    """Of an SM on which so many warps make one trip each."""
    of = {"issue": loop["instructions"] * warps / RATES["issue"],
          "shared": loop["shared_bytes"] * warps / RATES["shared"],
          "tensor": sum(n * warps / RATES[kind] for kind, n in loop["flop"].items())}
    return {name: round(value, 1) for name, value in of.items()}


def short_name(mangled):
    text = subprocess.run(["c++filt", mangled], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    text = re.sub(r"\(anonymous namespace\)::|nibble::(ops::gpu::|ops::|cuda::)?", "", text.strip())
    text = re.sub(r"\((?:GemmOut|sm12x::Body|\w+(?:::\w+)*)\)(\d+)", r"\1", text)
    return re.sub(r"^void |\((?!.*<).*\)$", "", text)


def listing_of(path, cuobjdump):
    env = dict(os.environ, NVDISASM_PATH=str(TOOLS), PATH=f"{TOOLS}:{os.environ['PATH']}")
    return subprocess.run([cuobjdump, "-sass", path], check=True, text=True, env=env,
                          stdout=subprocess.PIPE).stdout


def report(listing, wanted=None):
    """{kernel: {"registers": n, "loops": [...]}}, of those in `wanted`, or of all with MMA."""
    found = {}
    for mangled, code in kernels(listing):
        name = short_name(mangled)
        if wanted is not None and name not in wanted:
            continue
        loops = [measure(code[a:b + 1]) for a, b in innermost_loops(code)]
        loops = [loop for loop in loops if loop["matrix"] or
                 (loop["global_bytes"] and loop["instructions"] >= FEWEST)]
        budgets = [int(m[1], 16) for at in code if at.opcode.startswith("USETMAXREG")
                   for m in [re.search(r"0x([0-9a-f]+)\s*$", at.operands)] if m]
        if any(loop["matrix"] for loop in loops):
            found[name] = {"registers": max(budgets, default=0), "loops": loops}
    return found


def describe(loop, warps):
    of = clocks(loop, warps)
    most = max(of, key=of.get)
    dram = loop["global_bytes"] * warps / RATES["dram"]
    pipes = ", ".join(f"{k} {n}" for k, n in loop["pipes"].items())
    return (f"{loop['instructions']:4} instructions ({pipes})"
            f"; {', '.join(f'{n} {k}' for k, n in loop['matrix'].items()) or 'no products'}"
            f"; {loop['shared_bytes']} B shared, {loop['global_bytes']} B global; {warps} warps: "
            f"{most} {of[most]:.0f} clocks ({', '.join(f'{k} {v:.0f}' for k, v in of.items())}"
            + (f"; {dram:.0f} of DRAM if all of it comes from there)" if dram else ")"))


def faults_of(name, kernel, bound):
    """Ways in which a kernel is worse than its bound, as text."""
    if kernel["registers"] > bound["registers"]:
        yield f"{name}: {kernel['registers']} registers, {bound['registers']} allowed"
    if [l["matrix"] for l in kernel["loops"]] != [l["matrix"] for l in bound["loops"]]:
        yield f"{name}: its loops multiply otherwise than the bounds say; --update if that is meant"
        return
    for i, (loop, limit) in enumerate(zip(kernel["loops"], bound["loops"])):
        now = dict(clocks(loop, limit["warps"]), instructions=loop["instructions"])
        for what, value in now.items():
            allowed = limit["instructions"] if what == "instructions" else limit["clocks"][what]
            if value > SLACK * allowed:
                yield f"{name}, loop {i}: {what} {value:.0f}, at most {SLACK:g} times {allowed:.0f}"
        for what, share in limit.get("of_tensor", {}).items():
            if now[what] > share * now["tensor"]:
                yield (f"{name}, loop {i}: {what} takes {now[what] / now['tensor']:.1%} of the "
                       f"tensor pipe's clocks, {share:.0%} allowed")


def updated(kernel, bound, warps):
    """A bound of what a kernel is now; warps and shares stay where the bound had them."""
    old = bound["loops"] if bound and len(bound["loops"]) == len(kernel["loops"]) else []
    loops = []
    for i, loop in enumerate(kernel["loops"]):
        kept = {k: old[i][k] for k in ("warps", "of_tensor") if old and k in old[i]}
        used = kept.setdefault("warps", warps if loop["matrix"] else 4)
        loops.append({"instructions": loop["instructions"], "matrix": loop["matrix"],
                      "clocks": clocks(loop, used), **kept})
    return {"registers": bound["registers"] if bound else kernel["registers"], "loops": loops}


def to_text(bounds):
    """A line a loop."""
    sources = []
    for source, of in sorted(bounds.items()):
        rows = [f'  {json.dumps(name)}: {{"registers": {k["registers"]}, "loops": [\n' +
                ",\n".join(f"    {json.dumps(loop)}" for loop in k["loops"]) + "]}"
                for name, k in sorted(of.items())]
        sources.append(f" {json.dumps(source)}: {{\n" + ",\n".join(rows) + "}")
    return "{\n" + ",\n".join(sources) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objects", nargs="+")
    parser.add_argument("--bounds", default=str(ROOT / "tools/loop_bounds.json"))
    parser.add_argument("--cuobjdump", default=str(TOOLS / "cuobjdump"))
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--list", action="store_true", help="every kernel that multiplies")
    args = parser.parse_args()

    path = pathlib.Path(args.bounds)
    bounds = json.loads(path.read_text()) if path.exists() else {}
    faults, checked = [], 0
    for source, of in bounds.items():
        found = [o for o in args.objects if o.endswith(f"/{source}.o")]
        if not found:
            faults.append(f"{source}: no object of it")
            continue
        now = report(listing_of(found[0], args.cuobjdump), None if args.update else of)
        for name in sorted(set(of) | set(now)):
            if name not in now:
                faults.append(f"{source}: no kernel {name}")
                continue
            if args.update:
                of[name] = updated(now[name], of.get(name), 8)
            faults += faults_of(name, now[name], of[name])
            checked += len(now[name]["loops"])
            print(f"{name}: {now[name]['registers'] or 'all'} registers")
            for loop, limit in zip(now[name]["loops"], of[name]["loops"]):
                print(f"  {describe(loop, limit['warps'])}")
    if args.list:
        for file in args.objects:
            for name, kernel in report(listing_of(file, args.cuobjdump)).items():
                print(f"{name}")
                for loop in kernel["loops"]:
                    print(f"  {describe(loop, 8)}")
    if args.update:
        path.write_text(to_text(bounds))
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{checked} loops, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
