#!/usr/bin/env python3
"""tools/check_loops.py on a listing as cuobjdump prints it: what it counts of a loop, and that a
longer loop, other products, more registers and a missing kernel are faults."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_loops  # noqa: E402

WAIT = ["SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2], R3", "@!P0 BRA {wait}"]
LOOP = ["LDS.128 R4, [R8]", "LDS R12, [R8+0x200]",
        "LDGSTS.E.BYPASS.LTC128B.128 [R9], desc[UR4][R6.64]",
        "LOP3.LUT R4, R4, 0x3c3c3c3c, RZ, 0xc0, !PT", "SHF.L.U32 R5, R5, 0x2, RZ",
        "IMAD R1, R2, R3, R4", "UIADD3 UR4, UR4, 0x1, URZ",
        "QMMA.SF.16832.F32.E2M1.E4M3.E8 R48, R28, R24, R12, R23, R2, URZ",
        "QMMA.SF.16832.F32.E2M1.E4M3.E8 R52, R12, R24, R16, R41, R2, URZ",
        "HMMA.16816.F32 R56, R12, R24, R16", "IADD3 R1, R1, R2, R3", "IADD3 R2, R1, R2, R3"]


def listing(loop=LOOP, name="_Z4gemmv", registers=0xd8):
    """A kernel: a wait within the loop, and a retry behind the end that jumps back into it."""
    code = [f"USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x{registers:x}", "MOV R1, 0x1"]
    head = len(code)
    code += [line.format(wait=f"0x{16 * head:04x}") for line in WAIT] + loop
    code += [f"@P1 BRA 0x{16 * head:04x}", "EXIT", f"@!P0 BRA 0x{16 * head:04x}", "BRA 0x0"]
    lines = [f"\t\tFunction : {name}"]
    for i, text in enumerate(code):
        lines += [f"        /*{16 * i:04x}*/                   {text} ;       /* 0x{i:016x} */",
                  f"{'':40}/* 0x{i:016x} */"]
    return "\n".join(lines) + "\n"


def run(text, bounds, *flags):
    """(exit status, what it prints, the bounds afterwards)."""
    with tempfile.TemporaryDirectory() as folder:
        path, obj = pathlib.Path(folder) / "bounds.json", f"{folder}/gemm.cu.o"
        path.write_text(json.dumps(bounds))
        check_loops.listing_of = lambda *_: text
        sys.argv = ["check_loops.py", obj, "--bounds", str(path), *flags]
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = check_loops.main()
        return status, out.getvalue(), json.loads(path.read_text())


def main():
    kernel = check_loops.report(listing())["gemm"]
    loop, = kernel["loops"]
    assert loop["instructions"] == len(WAIT) + len(LOOP) + 1, loop
    assert loop["matrix"] == {"HMMA": 1, "QMMA.SF": 2}, loop
    assert loop["shared_bytes"] == 512 + 128 + 512 and loop["global_bytes"] == 512, loop
    assert loop["pipes"] == {"control": 3, "float": 1, "integer": 4, "memory": 3, "tensor": 3,
                             "uniform": 1}, loop
    # Two of 16 x 8 x 32 at 2,048 a clock, one of 16 x 8 x 16 at 1,024; 15 instructions at 4; eight.
    assert check_loops.clocks(loop, 8) == {"issue": 30, "shared": 72, "tensor": 64 + 32}, loop

    status, text, bounds = run(listing(), {"gemm.cu": {}}, "--update")
    assert status == 0, text
    assert run(listing(), bounds)[0] == 0
    longer = LOOP + ["IMAD R1, R2, R3, R4"]  # 16 of 15: not yet a tenth more
    assert run(listing(longer), bounds)[0] == 0
    for doctored, why in (
            (listing(longer + ["IMAD R1, R2, R3, R4"]), "instructions 17"),
            (listing(LOOP + ["LDS.128 R4, [R8]"]), "shared 104"),
            (listing([line.replace("QMMA.SF", "QMMA") for line in LOOP]), "multiply otherwise"),
            (listing(registers=0xe0), "224 registers, 216 allowed"),
            (listing(name="_Z5otherv"), "no kernel gemm")):
        status, text, _ = run(doctored, bounds)
        assert status == 1 and why in text, (why, text)
    bounds["gemm.cu"]["gemm"]["loops"][0]["of_tensor"] = {"shared": 0.5}
    status, text, _ = run(listing(), bounds)
    assert status == 1 and "75.0% of the tensor pipe's clocks, 50% allowed" in text, text
    bounds["gone.cu"] = {}
    assert "gone.cu: no object of it" in run(listing(), bounds)[1]


if __name__ == "__main__":
    main()
