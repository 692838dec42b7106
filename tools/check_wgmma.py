#!/usr/bin/env python3
"""Hopper's wgmma finds its registers let alone while it runs: machine code read along all paths.

usage: tools/check_wgmma.py OBJECT... [--cuobjdump PATH]

HGMMA, QGMMA, IGMMA and BGMMA are issued and go on by themselves. One that says gsb0 ends a group;
WARPGROUP.DEPBAR.LE gsb0, N waits until all groups but the N latest are done. Until then nothing may
read or write a product's sums, but a product that adds to the very same, nor write what it takes
its rows from. ptxas has broken that where a loop made the next rows beside products on their way:
some sums were NaN. A fault names the instruction, the registers and the wgmma.

Shared memory is not looked at. A jump whose target is not known is a fault while a product runs.
"""
import argparse
import functools
import re
import sys

import check_loops

DEEPEST = 8  # groups on their way that are told apart
# These read the first register that they name, and write none.
NO_RESULT = re.compile(r"ST|RED$|REDG|BAR|BRA|BRX|JM|CALL|RET|BSSY|BSYNC|WARPSYNC|LDGSTS|NANOSLEEP|"
                       r"SYNCS|UTMA|UBLKCP|CCTL|R2UR|R2P|BMOV|[A-Z]*SETP|FCHK|ARRIVES")
JUMPS = ("BRA", "JMP", "CALL", "WARPSYNC")
COMPUTED = ("BRX", "BRXU", "JMX", "JMXU")


def span(register, count):
    """(first, count) of a register's text; None of RZ and of what is none."""
    found = re.match(r"[-|~!]*R(\d+)\b", register.strip())
    return (int(found[1]), count) if found else None


def is_wgmma(at):
    return bool(re.match(r"[A-Z]GMMA\.", at.opcode))


@functools.lru_cache(maxsize=None)
def wgmma(opcode, operands):
    """(sums, rows): spans of registers; rows are None where they come from shared memory."""
    columns = int(re.search(r"\.64x(\d+)x", opcode)[1])
    sums = columns // (2 if ".F32" in opcode or opcode.startswith("I") else 4)
    given = operands.split(",")
    return span(given[0], sums), span(given[1], 4)


def size(opcode):
    """Registers of the data that a memory instruction, or one of wide numbers, moves."""
    base = opcode.split(".")[0]
    if base in ("LDSM", "STSM"):
        return {"4": 4, "2": 2}.get(opcode.split(".")[-1], 1)
    if base in ("LDC", "LDS", "LDG", "LD", "LDL", "STS", "STG", "ST", "STL", "STAS", "ATOM",
                "ATOMG", "ATOMS", "RED", "REDG"):
        return 4 if ".128" in opcode else 2 if ".64" in opcode else 1
    return 2 if base == "CS2R" and ".32" not in opcode or ".WIDE" in opcode or ".64" in opcode or \
        base in ("DADD", "DMUL", "DFMA") else 1


@functools.lru_cache(maxsize=None)
def uses(opcode, operands):
    """(written, read) of an instruction that is no wgmma: spans of registers."""
    base, wide = opcode.split(".")[0], size(opcode)
    parts = [part.strip() for part in operands.split(",") if part.strip()]
    at = 0
    while at < len(parts) and re.match(r"!?U?P[T\d]", parts[at]):
        at += 1  # a predicate before the result
    written, read = [], []
    for i, part in enumerate(parts):
        address = "[" in part
        for name, suffix in re.findall(r"(?<![A-Z])(R\d+)(\.64)?", part):
            if i == at and not address and not NO_RESULT.match(base):
                count = 4 if base.endswith("MMA") and ".F32" in opcode else wide
                written.append(span(name, count))
                continue
            if address:
                count = 2 if suffix else 1
            elif base.endswith("MMA"):
                count = 4 if i != at + 2 else 2  # A and sums, or B
            elif ".WIDE" in opcode:
                count = 2 if i == len(parts) - 1 else 1
            else:
                count = 1 if base == "SHFL" else wide
            read.append(span(name, count))
    return tuple(written), tuple(read)


def meet(a, b):
    return a and b and a[0] < b[0] + b[1] and b[0] < a[0] + a[1]


def faults_at(at, groups):
    """Texts of what an instruction does to products on their way."""
    if at.guard == "@!PT":
        return
    if is_wgmma(at):
        sums, rows = wgmma(at.opcode, at.operands)
        written, read = (sums,), (rows,)
    else:
        sums, (written, read) = None, uses(at.opcode, at.operands)
    for address, (busy, source) in sorted(set().union(*groups)):
        for mine, does in [(w, "writes") for w in written] + [(r, "reads") for r in read]:
            if meet(mine, busy) and not (mine == busy == sums):
                yield f"{does} R{mine[0]}, of R{busy[0]}..{sum(busy) - 1} that the wgmma at " \
                      f"{address:#x} adds to"
            if does == "writes" and meet(mine, source):
                yield f"writes R{mine[0]}, of R{source[0]}..{sum(source) - 1} that the wgmma at " \
                      f"{address:#x} reads"


def after(at, groups):
    """Products on their way behind an instruction: sets, the open group first, then the latest."""
    if is_wgmma(at):
        groups = (groups[0] | {(at.address, wgmma(at.opcode, at.operands))},) + groups[1:]
        if "gsb0" in at.operands:
            groups = (frozenset(),) + groups
    elif at.opcode.startswith("WARPGROUP.DEPBAR") and not at.guard:
        groups = groups[:1 + int(at.operands.split(",")[1], 16)]
    if len(groups) > 1 + DEEPEST:
        groups = groups[:DEEPEST] + (frozenset().union(*groups[DEEPEST:]),)
    while len(groups) > 1 and not groups[-1]:
        groups = groups[:-1]
    return groups


def followers(code, i, place):
    """Indices of what may come next. A BSYNC stands in front of where those who wait go on."""
    at = code[i]
    base = at.opcode.split(".")[0]
    target = re.search(r"0x([0-9a-f]+)\s*$", at.operands)
    always = not at.guard or at.guard == "@PT"
    if base in JUMPS and target and at.guard != "@!PT":
        if int(target[1], 16) in place:
            yield place[int(target[1], 16)]
        always &= base in ("BRA", "JMP") and at.operands.split() == [target[0].strip()] and \
            at.opcode not in ("BRA.DIV", "BRA.CONV", "BRA.U.ANY")
    if not (always and base in ("BRA", "JMP", "EXIT", "RET") + COMPUTED) and \
            i + 1 < len(code):
        yield i + 1


def faults_of(code):
    """Texts of a kernel's faults."""
    place = {at.address: i for i, at in enumerate(code)}
    ends = {int(at.operands.split(",")[1], 16) for at in code if at.opcode.startswith("BSSY")}
    before = {i: (frozenset(),) for i, at in enumerate(code) if is_wgmma(at)}
    todo = sorted(before, reverse=True)
    while todo:
        i = todo.pop()
        groups = after(code[i], before[i])
        if not any(groups):
            continue
        for j in followers(code, i, place):
            old = before.get(j, ())
            most = max(len(old), len(groups))
            new = tuple((old[n] if n < len(old) else frozenset()) |
                        (groups[n] if n < len(groups) else frozenset()) for n in range(most))
            if new != old:
                before[j] = new
                todo.append(j)
    for i, groups in sorted(before.items()):
        at = code[i]
        base = at.opcode.split(".")[0]
        if any(groups) and (base in COMPUTED or base == "BSYNC" and
                            not (i + 1 < len(code) and code[i + 1].address in ends)):
            yield f"{at.address:#x} {at.opcode}: where it goes is not known"
        for text in faults_at(at, groups):
            yield f"{at.address:#x} {at.opcode} {text}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objects", nargs="+")
    parser.add_argument("--cuobjdump", default=str(check_loops.TOOLS / "cuobjdump"))
    args = parser.parse_args()
    products, faults = 0, []
    for path in args.objects:
        for mangled, code in check_loops.kernels(check_loops.listing_of(path, args.cuobjdump)):
            found = sum(is_wgmma(at) for at in code)
            products += found
            faults += [f"{path}: {check_loops.short_name(mangled)}: {text}"
                       for text in (faults_of(code) if found else ())]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{products} wgmma, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
