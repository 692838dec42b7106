# nibble's two commands are `make serve` and `make test`; the rest is for who works on it.
#   make serve [MODEL=dir-or-repo-id] [PORT=8000] [ARGS='more flags']    build, then serve
#   make build [PRESET=cpu|h200|spark]                                   build/<preset>/nibble
#   make install [PREFIX=/usr/local] [DESTDIR=]    program, small model, systemd unit
#   make package [PRESET=cpu|arm64|h200|spark]     .deb and tarball in build/packages; packages: all four
#   make test                        every fast test
#   make test-clients [CLIENTS='aider llm']   installs and drives real clients (docs/clients.md)
#   make test-slow | test-asan | test-tsan | test-arm64                  further runs
#   make test-gpu | bench-gpu | soak-gpu [PRESET=h200]   built anywhere, run where the GPU is
#   make check-emulated | test-emulated   GPU kernels on the CPU: instructions, or all ops
#   make test-packages               the packages of PRESET, in a fresh Debian (as root)
#   make check-cubins                compiles the DGX Spark's kernels, and Hopper's own, and checks them
#   make check-spark                 the same, the whole program, which then runs emulated
#   make fuzz [FUZZ_SECONDS=60] [FUZZ_INPUTS=10000000]   every fuzz target, that long each, or until
#                                    it has had so many inputs in all runs
#   make soak [SOAK_MINUTES=2]       mixed load on one server: memory stays flat, answers the same
#   make format | format-check | layers | lint | clean | help
SHELL := /bin/bash
.DEFAULT_GOAL := build

MODEL ?= models/nibble-tiny-gpt-oss
PORT ?= 8000
ARGS ?=
CLIENTS ?=
JOBS ?= $(shell tools/build_jobs.sh)
# The backend: what the machine's GPU needs, or cpu.
PRESET ?= $(shell tools/pick_preset.sh)
PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 60
FUZZ_INPUTS ?=
SOAK_MINUTES ?= 2
SOAK_ARGS ?=
export CTEST_OUTPUT_ON_FAILURE := 1

CMAKE_BUILD = cmake --preset $(1) $(2) && cmake --build --preset $(1) -j $(JOBS) $(3)
SETUP_PRESET = $(if $(filter h200,$(PRESET)),cuda)$(filter arm64 spark,$(PRESET))
SOURCES = git ls-files -co --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh'

.PHONY: build serve install package packages test-packages test test-clients test-slow test-asan test-tsan test-arm64 \
        test-parsers test-gpu bench-gpu \
        soak-gpu check-emulated test-emulated check-cubins check-spark fuzz soak format format-check layers lint clean help

build:
	@tools/setup.sh build $(SETUP_PRESET)
	@$(call CMAKE_BUILD,$(PRESET),-DNIBBLE_TESTS=OFF,--target nibble)

serve: build
	build/$(PRESET)/nibble serve $(MODEL) --port $(PORT) $(ARGS)

# `make build` as yourself, then `sudo make install`.
install: build
	DESTDIR=$(DESTDIR) cmake --install build/$(PRESET) --strip --prefix $(PREFIX)

package: build
	tools/package.sh $(PRESET)

PACKAGED = cpu arm64 h200 spark
packages:
	@for preset in $(PACKAGED); do $(MAKE) --no-print-directory package PRESET=$$preset || exit 1; done

test-packages: package
	tools/package_test.sh $(PRESET)

test:
	@tools/setup.sh test
	@$(call CMAKE_BUILD,cpu,-DNIBBLE_TESTS=ON)
	ctest --test-dir build/cpu --label-exclude slow

# With the network, a quarter of an hour and 9 GB: by hand.
test-clients: build
	@tools/setup.sh clients
	NIBBLE=build/$(PRESET)/nibble python3 tests/clients/run.py $(CLIENTS)

test-slow:
	@tools/setup.sh test
	@$(call CMAKE_BUILD,cpu,-DNIBBLE_TESTS=ON)
	ctest --test-dir build/cpu --label-regex slow

test-asan test-tsan: test-%:
	@tools/setup.sh test
	@$(call CMAKE_BUILD,$*)
	ctest --test-dir build/$* --label-exclude slow

# What reads bytes from outside, under ASan and UBSan, with the fuzz corpora replayed.
test-parsers:
	@tools/setup.sh test
	@$(call CMAKE_BUILD,asan,,--target nibble_parser_tests)
	ctest --test-dir build/asan --label-regex parser

test-arm64:
	@tools/setup.sh arm64
	@$(call CMAKE_BUILD,arm64)
	ctest --test-dir build/arm64 --label-regex unit

# On a machine without a GPU these build and say what to carry to one that has it.
GPU_PRESET = $(if $(filter cpu,$(PRESET)),h200,$(PRESET))
HAVE_GPU = $(wildcard /proc/driver/nvidia/gpus/*)

test-gpu:
	@tools/setup.sh test cuda
	@$(call CMAKE_BUILD,$(GPU_PRESET),-DNIBBLE_TESTS=ON,--target nibble_gpu_tests)
	@$(if $(HAVE_GPU),tools/gpu_run.sh test build/$(GPU_PRESET),\
	  echo "no GPU here; on one that has it: tools/gpu_run.sh test build/$(GPU_PRESET)")

bench-gpu soak-gpu: %-gpu:
	@tools/setup.sh build cuda
	@$(call CMAKE_BUILD,$(GPU_PRESET),-DNIBBLE_TESTS=OFF,--target nibble)
	@$(if $(HAVE_GPU),tools/gpu_run.sh $* build/$(GPU_PRESET) bench/results,\
	  echo "no GPU here; on one that has it: tools/gpu_run.sh $* build/$(GPU_PRESET) bench/results")

# tests/emulated_cuda, less what needs several GPUs, or hours.
EMULATED_SMALL = nibble_emulated_cuda_test nibble_cuda_gpu_test
EMULATED_TEST = GTEST_FILTER='-Nccl*:OneShotGpu*:GpuRanks*:LaunchOrderGpu*' NIBBLE_SMALL_TESTS=2800 \
  ctest --no-tests=error --test-dir build/emulated
check-emulated:
	@tools/setup.sh test cuda
	@cmake --preset emulated && cmake --build build/emulated -j $(JOBS) --target $(EMULATED_SMALL)
	$(EMULATED_TEST) -R '^(emulated_cuda|cuda_gpu)$$'

test-emulated:
	@tools/setup.sh test cuda
	@cmake --preset emulated && cmake --build build/emulated -j $(JOBS) --target $(EMULATED_SMALL) nibble_ops_gpu_test nibble_cli_gpu_test
	$(EMULATED_TEST) -R '^(emulated_cuda|cuda_gpu|ops_gpu|cli_gpu)$$'

# The objects of kernels alone: CI has no time for a second build of everything. GB10's are all
# that it can run; of Hopper's those that are its alone, and the one that fills its registers. Of
# formats that one template unfolds one each: REPEATED=, or preset h200, compiles the others.
HOPPER_OBJECTS = (_sm90|gemm_mma_cuda|delta_rule_chunks_cuda)
REPEATED = gemm_(mxfp8|fp8_row|int4_g128)_sm90
CUDA_OBJECTS = $$(ninja -C build/$(1) -t targets all | \
                 sed -nE '$(if $(REPEATED),/$(REPEATED)/d;) s~^(.*$(2)\.cu\.o):.*~$(3)\1~p')
check-cubins:
	@tools/setup.sh build cuda cubin
	@cmake --preset cubins
	@ninja -C build/cubins -j $(JOBS) $(call CUDA_OBJECTS,cubins,)
	tools/check_cubins.py --arch sm_121a $(call CUDA_OBJECTS,cubins,,build/cubins/)
	tools/check_loops.py $(call CUDA_OBJECTS,cubins,,build/cubins/)
	@cmake --preset cubins-sm90
	@ninja -C build/cubins-sm90 -j $(JOBS) $(call CUDA_OBJECTS,cubins-sm90,$(HOPPER_OBJECTS))
	tools/check_cubins.py --arch sm_90a $(call CUDA_OBJECTS,cubins-sm90,$(HOPPER_OBJECTS),build/cubins-sm90/)
	tools/check_wgmma.py $(call CUDA_OBJECTS,cubins-sm90,$(HOPPER_OBJECTS),build/cubins-sm90/)

# By hand after changing GPU code or the build: some ten minutes of two cores.
check-spark:
	@tools/setup.sh spark cubin
	@$(call CMAKE_BUILD,spark,-DNIBBLE_TESTS=OFF,--target nibble)
	tools/check_cubins.py build/spark/nibble --arch sm_121a
	tools/run_spark.sh build/spark/nibble

fuzz:
	@tools/setup.sh fuzz
	@$(call CMAKE_BUILD,fuzz)
	tools/fuzz.sh build/fuzz $(FUZZ_SECONDS) $(FUZZ_INPUTS)

soak: build
	NIBBLE=build/$(PRESET)/nibble python3 bench/soak.py --minutes $(SOAK_MINUTES) $(SOAK_ARGS)

format:
	@tools/setup.sh lint
	$(SOURCES) | xargs build/clang-format -i

format-check:
	@tools/setup.sh lint
	$(SOURCES) | xargs build/clang-format --dry-run -Werror

layers:
	python3 tools/check_layers.py

# What the cpu preset compiles, less benchmarks, whose macros look like leaks, and coroutines: clang 14,
# which Debian 12 has, does not know those of GCC's library. LINT_FILES: some files, as an hour of a
# core goes into all of them.
LINT_FILES ?= $$(sed -n 's|^ *"file": ".*/\(src/[^"]*\.cc\)".*|\1|p' build/cpu/compile_commands.json \
                | grep -v _bench.cc | sort -u | xargs grep -L -e co_await -e cli/load_client.h)
lint: layers
	@tools/setup.sh lint test
	@cmake --preset cpu -B build/lint -DNIBBLE_TESTS=ON -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
	@echo $(LINT_FILES) | xargs -P $(JOBS) -n 1 clang-tidy -p build/lint --quiet

clean:
	rm -rf build

help:
	@sed -n '/^SHELL/q; s/^# \?//p' Makefile
