#!/usr/bin/env python3
"""tools/check_wgmma.py on listings as cuobjdump prints them: what may and what may not touch the
registers of products on their way, in a line and around a loop."""
import contextlib
import io
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_loops  # noqa: E402
import check_wgmma  # noqa: E402

# 32 columns: sums are R24 to R39; rows R4 to R7, or R8 to R11.
FIRST = "HGMMA.64x32x16.F32.BF16 R24, R4, gdesc[UR4], R24, UP0"
LAST = "HGMMA.64x32x16.F32.BF16 R24, R8, gdesc[UR4], R24, gsb0"
ONE = "HGMMA.64x32x16.F32.BF16 R24, R4, gdesc[UR4], RZ, !UPT, gsb0"
OTHER = "QGMMA.64x32x32.F32.E4M3.E4M3 R40, gdesc[UR8], R40, gsb0"  # rows from shared memory
ALL, BUT_ONE = "WARPGROUP.DEPBAR.LE gsb0, 0x0", "WARPGROUP.DEPBAR.LE gsb0, 0x1"
END = ["EXIT", "BRA 0x{end}"]


def faults(*code):
    """What the check says of a kernel; {n} is the address of instruction n."""
    at = {f"a{i}": f"{16 * i:x}" for i in range(len(code) + 2)}
    at["end"] = f"{16 * (len(code) + 1):x}"
    lines = ["\t\tFunction : _Z4gemmv"]
    for i, text in enumerate([*code, *END]):
        guard, _, rest = text.partition(" ") if text.startswith("@") else ("", "", text)
        lines += [f"        /*{16 * i:04x}*/ {guard:>18} {rest.format(**at)} ;  /* 0x{i:016x} */",
                  f"{'':40}/* 0x{i:016x} */"]
    check_loops.listing_of = lambda *_: "\n".join(lines) + "\n"
    sys.argv = ["check_wgmma.py", "gemm.cu.o"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = check_wgmma.main()
    *texts, summary = out.getvalue().splitlines()
    assert status == (1 if texts else 0) and f"{len(texts)} faults" in summary, out.getvalue()
    return texts


GOOD = {
    "what others do beside": [FIRST, LAST, "IMAD R40, R12, R13, R14", ALL, "FADD R1, R24, R39"],
    "rows are read, not written": [ONE, "IADD3 R1, R4, R7, RZ", ALL],
    "the neighbours of sums and rows": [ONE, "MOV R23, R40", "MOV R3, R8", ALL],
    "sums that several add to": [FIRST, LAST, FIRST, LAST, ALL],
    "the group before the latest": [ONE, OTHER, BUT_ONE, "MOV R4, R24", ALL],
    "a loop that waits in it": [
        "MOV R4, R1", ONE, ALL, "FADD R1, R24, R1", "@P0 BRA 0x{a0}"],
    "rows by turns": [  # of two groups on their way the older is done before its rows are made anew
        "MOV R4, R1", FIRST.replace("UP0", "gsb0"), BUT_ONE, "MOV R8, R1", LAST, BUT_ONE,
        "@P0 BRA 0x{a0}", ALL, "MOV R24, R4"],
    "an instruction that never runs": [ONE, "@!PT LDS R24, [R1]", ALL],
    "a branch around": [ONE, "BRA 0x{a3}", "MOV R24, RZ", ALL],
    "a part that meets": ["BSSY B0, 0x{a4}", "@P0 BRA 0x{a3}", ONE, "BSYNC B0", ALL],
}
BAD = {
    "sums are written": ([ONE, "MOV R39, RZ", ALL], "writes R39, of R24..39"),
    "sums are read": ([ONE, "STG.E desc[UR4][R2.64], R24", ALL], "reads R24"),
    "sums are an address": ([ONE, "LDS R1, [R39+UR4+0x10]", ALL], "reads R39"),
    "an address of 64 bits": ([ONE, "LDG.E R1, desc[UR4][R23.64]", ALL], "reads R23"),
    "rows are written": ([ONE, "IMAD R7, R12, R13, R14", ALL], "writes R7, of R4..7"),
    "rows are loaded": ([ONE, "LDS.128 R0, [R12]", "LDS.128 R1, [R12]", ALL], "writes R1"),
    "rows by ldmatrix": ([ONE, "LDSM.16.M88.4 R1, [R12]", ALL], "writes R1"),
    "a wide product": ([ONE, "IMAD.WIDE R22, R12, 0x4, R22", "IMAD.WIDE.U32 R23, R1, R1, R12",
                        ALL], "writes R23"),
    "a result behind a predicate": ([ONE, "SHFL.BFLY PT, R24, R1, 0x1, 0x1f", ALL], "writes R24"),
    "where it is only perhaps": ([ONE, "@P0 MOV R24, RZ", ALL], "writes R24"),
    "a wait for all but one": ([ONE, BUT_ONE, "MOV R24, RZ", ALL], "writes R24"),
    "a group that has no end": ([FIRST, ALL, "MOV R24, RZ"], "writes R24"),
    "a wait on one side": ([ONE, "@P0 BRA 0x{a3}", ALL, "MOV R4, RZ"], "writes R4"),
    "a wait that some pass over": ([ONE, f"@P0 {ALL}", "MOV R4, RZ"], "writes R4"),
    "sums of another width": ([ONE, OTHER.replace("R40", "R32"), ALL], "writes R32"),
    "sums that are rows": ([ONE, OTHER.replace("R40, g", "R40, R36, g"), ALL], "reads R36"),
    "rows around a loop": (
        ["MOV R4, R1", FIRST.replace("UP0", "gsb0"), "@P0 BRA 0x{a0}", ALL], "0x0 MOV writes R4"),
    "the older of two around a loop": (
        ["MOV R4, R1", FIRST.replace("UP0", "gsb0"), "MOV R8, R1", LAST, BUT_ONE,
         "@P0 BRA 0x{a0}", ALL], "MOV writes R8"),
    "a way that is not known": ([ONE, "BRX R12 -0x10", ALL], "BRX: where it goes is not known"),
}


def main():
    for what, code in GOOD.items():
        assert not faults(*code), (what, faults(*code))
    for what, (code, why) in BAD.items():
        texts = faults(*code)
        assert len(texts) == 1 and why in texts[0], (what, texts)
    # Sums in 16 bits take half as many registers, those in whole numbers as many as float's.
    assert not faults("HGMMA.64x32x16.F16 R24, gdesc[UR4], R24, gsb0", "MOV R32, RZ")
    assert faults("IGMMA.64x32x32.S8.S8 R24, gdesc[UR4], R24, gsb0", "MOV R32, RZ")


if __name__ == "__main__":
    main()
