#!/usr/bin/env bash
# Installs what nibble needs and the machine lacks, from the distribution's packages and PyPI.
# Says nothing and changes nothing where all is there. Debian 12, Ubuntu 24.04; x86-64 and arm64.
#
# usage: tools/setup.sh [GROUP...]      (default: build)
#   build  compiler, CMake and libraries: enough for `make serve`
#   xgrammar  the grammar library's source, patched (build/xgrammar); part of build
#   page   the libraries that the chat page renders answers with (build/page); part of build
#   jinja  the template engine's source, patched, and real chat templates (build/jinja); part of build
#   test   GoogleTest, Google Benchmark, and the Python clients that tests drive (build/venv)
#   clients  uv, which installs the clients of `make test-clients` (build/uv)
#   lint   clang-format, clang-tidy
#   fuzz   clang with libFuzzer
#   arm64  cross compiler, qemu-user and arm64 libraries (build/sysroot-arm64)
#   cuda   nvcc, if the machine has none (build/cuda)
#   spark  what preset spark needs: nvcc; on x86-64 the cross compiler and arm64 libraries as well
#   cubin  cuobjdump, for static checks of GPU code (build/cuobjdump)
# NIBBLE_SETUP=skip leaves the distribution's packages to you, whatever the distribution; what comes
# from PyPI still goes into build/ where it is not there.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "setup: $*" >&2; exit 1; }

as_root() {
  if [[ $EUID == 0 ]]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "run this as root, or install sudo: $*"; fi
}

# Installs those of the named packages that are missing.
packages() {
  [[ ${NIBBLE_SETUP:-} == skip ]] && return
  command -v dpkg-query >/dev/null || die "this is not Debian or Ubuntu. Install what corresponds" \
    "to: $* ; then set NIBBLE_SETUP=skip"
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  [[ ${#missing[@]} == 0 ]] && return
  echo "setup: installing ${missing[*]}"
  as_root apt-get -qq update
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${missing[@]}" </dev/null >build/setup.log 2>&1 ||
    { tail -20 build/setup.log >&2; die "apt-get failed (log: build/setup.log)"; }
}

# unchanged NAME PATH...: true if done_with NAME was called with files, and files in folders, of the
# same names and bytes.
unchanged() {
  local stamp=build/.setup/$1
  shift
  [[ -f $stamp && $(sums_of "$@") == "$(<"$stamp")" ]]
}
done_with() {
  local stamp=build/.setup/$1
  shift
  mkdir -p build/.setup
  sums_of "$@" >"$stamp"
}
sums_of() { find "$@" -type f -print0 2>/dev/null | LC_ALL=C sort -z | xargs -0 sha256sum; }

python_venv() {
  packages python3 python3-venv ca-certificates
  [[ -x build/venv/bin/pip ]] || /usr/bin/python3 -m venv build/venv
}

pip_install() { build/venv/bin/pip install --quiet --disable-pip-version-check --no-deps "$@"; }

group_build() {
  packages g++ cmake ninja-build make ca-certificates libboost-dev libpcre2-dev \
    nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libutf8proc-dev libedit-dev libssl-dev
  group_xgrammar
  group_page
  group_jinja
}

# The grammar library's source, which no distribution packages: by version and hash, with what
# cmake/xgrammar.patch mends. CMake builds it.
group_xgrammar() {
  local stamped=(tools/requirements-xgrammar.txt cmake/xgrammar.patch build/xgrammar)
  unchanged xgrammar "${stamped[@]}" && return
  packages patch
  python_venv
  echo "setup: fetching the source of tools/requirements-xgrammar.txt into build/xgrammar"
  rm -rf build/xgrammar build/xgrammar.part
  mkdir build/xgrammar.part
  build/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary xgrammar \
    --require-hashes --dest build/xgrammar.part -r tools/requirements-xgrammar.txt ||
    die "no xgrammar: see tools/requirements-xgrammar.txt"
  tar -xmzf build/xgrammar.part/xgrammar-*.tar.gz --strip-components=1 -C build/xgrammar.part
  patch --quiet -p1 -d build/xgrammar.part/cpp <cmake/xgrammar.patch || die "cmake/xgrammar.patch failed"
  rm build/xgrammar.part/*.tar.gz
  mv build/xgrammar.part build/xgrammar
  done_with xgrammar "${stamped[@]}"
}

# The chat page's JavaScript libraries and its font for formulas, each out of a Python package that
# carries it: by version and hash. Of the font, what formulas use. CMake builds them into the program.
group_page() {
  unchanged page tools/requirements-page.txt build/page && return
  python_venv
  echo "setup: fetching the chat page's libraries (tools/requirements-page.txt) into build/page"
  rm -rf build/page build/page.part
  local part=build/page.part wheel library file
  mkdir -p $part/page
  build/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary=:all: --python-version 3.13 --platform any --dest $part \
    -r tools/requirements-page.txt ||
    die "no libraries for the chat page: see tools/requirements-page.txt"
  for wheel in $part/*.whl; do build/venv/bin/python -m zipfile -e "$wheel" $part; done
  while read -r library file; do mv "$part/$file" "$part/page/$library"; done <<'END'
marked.js pretalx/static/vendored/marked.min.js
purify.js nicegui/static/dompurify.mjs
highlight.js ckanext/textview/assets/vendor/highlight.js
katex.js sphinxcontrib/katex.min.js
END
  # Latin, Greek, letters of mathematics; operators, arrows, brackets.
  local characters=20-7E,A0-FF,131,237,2B0-2FF,300-338,370-3FF,2000-206F,20D0-20EF,2100-214F
  characters+=,2190-23FF,25A0-25FF,2600-266F,27C0-27FF,2900-2AFF,1D400-1D7FF
  PYTHONPATH=$part build/venv/bin/python -m fontTools.subset \
    $part/ziamath/fonts/STIXTwoMath-Regular.ttf --output-file=$part/page/math.woff --flavor=woff \
    --no-hinting --layout-features=ssty,math,flac,dtls --unicodes=$characters
  mv $part/page build/page
  rm -r $part
  done_with page tools/requirements-page.txt build/page
}

# The template engine of llama.cpp, out of the source of its Python package: by version and hash, with
# the bounds of cmake/jinja.patch. CMake builds it; the tests render the templates that come with it.
group_jinja() {
  local stamped=(tools/requirements-jinja.txt cmake/jinja.patch build/jinja)
  unchanged jinja "${stamped[@]}" && return
  packages patch
  python_venv
  echo "setup: fetching the source of tools/requirements-jinja.txt into build/jinja"
  rm -rf build/jinja build/jinja.part
  mkdir build/jinja.part
  build/venv/bin/pip download --quiet --disable-pip-version-check --no-deps \
    --no-binary llama-cpp-python --require-hashes --dest build/jinja.part \
    -r tools/requirements-jinja.txt || die "no template engine: see tools/requirements-jinja.txt"
  tar -xmzf build/jinja.part/llama_cpp_python-*.tar.gz --strip-components=3 -C build/jinja.part \
    --wildcards '*/vendor/llama.cpp/common/jinja/*' '*/vendor/llama.cpp/common/unicode.*' \
    '*/vendor/llama.cpp/models/templates/*' '*/vendor/llama.cpp/LICENSE'
  patch --quiet -p1 -d build/jinja.part/common <cmake/jinja.patch || die "cmake/jinja.patch failed"
  rm build/jinja.part/*.tar.gz
  mv build/jinja.part build/jinja
  done_with jinja "${stamped[@]}"
}

group_test() {
  group_build
  packages libgtest-dev libgmock-dev libbenchmark-dev xz-utils curl haproxy
  unchanged test tools/requirements-test.txt && return
  python_venv
  echo "setup: installing the Python clients of tools/requirements-test.txt"
  pip_install -r tools/requirements-test.txt
  done_with test tools/requirements-test.txt
}

# tests/clients/run.py installs the clients themselves, each into a folder of build/clients.
group_clients() {
  unchanged clients tools/requirements-clients.txt && return
  python_venv
  rm -rf build/uv
  pip_install --require-hashes --target build/uv -r tools/requirements-clients.txt ||
    die "no uv: see tools/requirements-clients.txt"
  done_with clients tools/requirements-clients.txt
}

# build/clang-format is the version whose output the tree is checked against.
group_lint() {
  packages clang-tidy python3
  unchanged lint tools/requirements-lint.txt && return
  local installed
  installed=$(command -v clang-format || true)
  if [[ -n $installed ]] && "$installed" --version | grep -q 'version 14\.'; then
    ln -sf "$installed" build/clang-format
  else
    python_venv
    pip_install -r tools/requirements-lint.txt
    ln -sf venv/bin/clang-format build/clang-format
  fi
  done_with lint tools/requirements-lint.txt
}

group_fuzz() {
  group_build
  packages clang
  local version
  version=$(clang --version | sed -nE '1s/.*version ([0-9]+).*/\1/p')
  packages "libclang-rt-$version-dev"
}

# The arm64 libraries are unpacked, not installed, so the machine's own package state stays as it
# is: apt gets a list of packages and a cache of its own.
group_arm64() {
  [[ $(uname -m) == aarch64 ]] && { group_test; return; }
  group_build
  packages g++-aarch64-linux-gnu qemu-user-static
  unchanged arm64 tools/setup.sh && return
  echo "setup: unpacking arm64 libraries into build/sysroot-arm64"
  local root=$PWD/build/sysroot-arm64
  local apt=(-q -o APT::Architecture=arm64 -o APT::Architectures=arm64
    -o Dir::State="$root/apt" -o Dir::State::status="$root/apt/status" -o Dir::Cache="$root/apt/cache"
    -o APT::Sandbox::User=root)
  mkdir -p "$root/apt/lists/partial" "$root/apt/cache/archives/partial"
  : >"$root/apt/status"
  apt-get "${apt[@]}" update >build/setup.log 2>&1 || die "no arm64 package lists (build/setup.log)"
  (cd "$root/apt" && apt-get "${apt[@]}" download libpcre2-dev libutf8proc-dev libssl-dev \
    libedit-dev libbsd-dev libmd-dev libncurses-dev libgtest-dev \
    libgmock-dev libbenchmark-dev libbenchmark1debian >>../../setup.log 2>&1) || die "no arm64 packages (build/setup.log)"
  local deb
  for deb in "$root"/apt/*.deb; do dpkg -x "$deb" "$root"; done
  rm -r "$root/apt"
  local headers  # of header-only libraries: the machine's own
  for headers in boost CLI fmt nlohmann spdlog; do
    ln -sfn "/usr/include/$headers" "$root/usr/include/$headers"
  done
  done_with arm64 tools/setup.sh
}

# nvcc from PyPI's packages of the CUDA toolkit: by version and hash, unpacked into one folder.
group_cuda() {
  local nvcc
  for nvcc in "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    [[ -x $nvcc ]] && "$nvcc" --version | grep -qE 'release 1[3-9]\.' && return
  done
  unchanged cuda tools/requirements-cuda.txt && return
  python_venv
  echo "setup: fetching nvcc (tools/requirements-cuda.txt) into build/cuda"
  rm -rf build/cuda build/cuda.part
  pip_install --require-hashes --target build/cuda.part -r tools/requirements-cuda.txt ||
    die "no nvcc: install the CUDA toolkit 13.0 or newer from your distribution or from NVIDIA," \
      "put nvcc on PATH, and run this again"
  mv build/cuda.part/nvidia/cu13 build/cuda
  rm -r build/cuda.part
  chmod +x build/cuda/bin/* build/cuda/nvvm/bin/*
  build/cuda/bin/nvcc --version >/dev/null || die "build/cuda/bin/nvcc does not run"
  done_with cuda tools/requirements-cuda.txt
}

# For preset spark: nvcc, and on x86-64 what makes programs for arm64. The wheel of the CUDA runtime
# for arm64 is unpacked, not installed.
group_spark() {
  group_build
  group_cuda
  [[ $(uname -m) == aarch64 ]] && return
  group_arm64
  unchanged spark tools/requirements-cuda.txt && return
  python_venv
  echo "setup: unpacking the CUDA runtime for arm64 into build/cuda-arm64"
  rm -rf build/cuda-arm64 build/cuda-arm64.part
  grep -A2 '^nvidia-cuda-runtime==' tools/requirements-cuda.txt >build/cuda-arm64.txt
  pip_install --require-hashes --only-binary=:all: --platform manylinux2014_aarch64 \
    --target build/cuda-arm64.part -r build/cuda-arm64.txt || die "no CUDA runtime for arm64"
  mv build/cuda-arm64.part/nvidia/cu13 build/cuda-arm64
  rm -r build/cuda-arm64.part build/cuda-arm64.txt
  done_with spark tools/requirements-cuda.txt
}

group_cubin() {
  unchanged cubin tools/requirements-cubin.txt && return
  python_venv
  rm -rf build/cuobjdump build/cuobjdump.part
  pip_install --require-hashes --target build/cuobjdump.part -r tools/requirements-cubin.txt ||
    die "no cuobjdump: see tools/requirements-cubin.txt"
  mv build/cuobjdump.part/nvidia/cu13 build/cuobjdump
  rm -r build/cuobjdump.part
  chmod +x build/cuobjdump/bin/*
  done_with cubin tools/requirements-cubin.txt
}

mkdir -p build
for group in "${@:-build}"; do
  declare -F "group_$group" >/dev/null || die "no group '$group': see the head of tools/setup.sh"
  "group_$group"
done
