#!/usr/bin/env python3
"""Checks the #include lines of src/ against the layers of docs/design.md, section 2.

A module may include what its row says: another module ("tensor"), one header ("engine/engine.h") or
a pattern of headers ("ops/*/*.h"). Tests and benches beside the code are held to the same rows,
except that they may reach what TESTS_MAY adds. CUDA headers belong to CUDA sources.
"""
import fnmatch
import pathlib
import re
import sys

MAY_INCLUDE = {
    "base": [],
    "tensor": ["base"],
    "formats": ["base"],
    "cpu": ["base", "tensor", "formats"],
    "cuda": ["base", "tensor", "formats"],
    "io": ["base", "tensor", "formats"],
    "text": ["base"],
    "dist": ["base"],
    "ops": ["base", "tensor", "formats", "cpu", "cuda", "dist/comm.h"],
    "models": ["base", "tensor", "formats", "io", "dist/comm.h", "ops/*.h"],
    "engine": ["base", "tensor", "cuda/*.h", "dist/comm.h", "ops/ctx.h", "ops/step.h",
               "ops/sample/*.h", "ops/draft_head/*.h", "models/model.h", "models/draft_head.h"],
    "server": ["base", "text", "engine/engine.h", "engine/request.h"],
    "cli": None,  # anything
}
TESTS_MAY = {"ops": ["dist"], "models": ["cpu", "dist"],
             "engine": ["io", "cpu", "cuda", "dist", "ops", "models", "formats"],
             "server": ["engine"]}
CUDA_SOURCE = re.compile(r"\.cuh?$|^src/cuda/.*\.cc$|^src/dist/comm_nccl\.cc$")
CUDA_HEADER = re.compile(r"<(cuda|cublas|nccl|cute/|cutlass/|mma\.h)")
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def allowed(module, is_test, header):
    rows = MAY_INCLUDE[module]
    if rows is None or header.startswith(module + "/"):
        return True
    rows = rows + (TESTS_MAY.get(module, []) if is_test else [])
    return any(fnmatch.fnmatch(header, row if "." in row else row + "/*") for row in rows)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    faults, checked = [], 0
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
            continue
        checked += 1
        name = path.relative_to(root).as_posix()
        module = name.split("/")[1]
        if module not in MAY_INCLUDE:
            faults.append(f"{name}: module '{module}' has no row in tools/check_layers.py")
            continue
        is_test = bool(re.search(r"_(test|bench|fuzz)\.(cc|cu)$|test_", path.name))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, header = match.groups()
            if quote == '"' and not allowed(module, is_test, header):
                faults.append(f"{name}:{number}: {module} may not include \"{header}\"")
            is_cuda = CUDA_HEADER.match(quote + header) or header.endswith(".cuh")
            if is_cuda and not CUDA_SOURCE.search(name):
                faults.append(f"{name}:{number}: a CUDA header outside CUDA sources: {header}")
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"layers: {checked} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
