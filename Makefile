# `make start` and `make test` are all that most people need.

SHELL := /bin/bash
# make build, images and sbom take ARCH=arm64 or amd64: the other one is cross-compiled (hack/deps.sh cross).
HOST  := $(shell go env GOHOSTARCH)
ARCH  := $(HOST)
CROSS := $(if $(filter-out $(HOST),$(ARCH)),$(ARCH))
BIN   := bin/$(if $(CROSS),$(CROSS)/)coracle
SHIM  := pkg/node/runtime/containerd/assets/$(ARCH)/coracle-shim.zst
CHECK := pkg/systems/buildbarn/check/packed/assets/$(ARCH)/coracle-buildbarn-check.zst
PARTS := dist/$(if $(CROSS),$(CROSS)/)
SBOM  := dist/coracle$(if $(filter-out amd64,$(ARCH)),-$(ARCH)).cdx.json
IMAGES := dist/images$(if $(CROSS),-$(CROSS))
EXAMPLES := dist/images-examples
DATABASE := dist/images-database/postgres.tar
BUILDBARN := dist/images-buildbarn
TOOLCHAIN := dist/images-toolchain/toolchain.tar
CSI := dist/images-csi
GOFLAGS_SHIM := -trimpath -tags "netgo osusergo seccomp" -ldflags "-s -w -linkmode external -extldflags -static"
# The embedded kubectl reports this release.
KUBERNETES := $(shell sed -n 's/.*Kubernetes = "\(.*\)"/\1/p' pkg/base/version/version.go)
KUBECTL    := k8s.io/component-base/version
# Tools and tests have the binary's flags, so that shared packages are compiled once.
TOOL := CGO_ENABLED=0 go run -trimpath
TEST := CGO_ENABLED=0 go test -trimpath -count=1
# A recursive variable: hack/stamp.sh runs only when a build needs it.
GOFLAGS_BIN = -trimpath -ldflags "-s -w -X $(KUBECTL).gitVersion=$(KUBERNETES) -X $(KUBECTL).gitMajor=1 -X $(KUBECTL).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES))) $$(hack/stamp.sh)"
SOURCES := $(shell find cmd pkg apis -name '*.go' -not -name '*_test.go') go.mod go.sum

.PHONY: start build test unit e2e upstream upstream-tests buildbarn buildbarn-images toolchain-image csi csi-images example-images database database-images lint generate bench bench-upstream machine clients conformance conformance-sample conformance-deps robustness fuzz nightly images deps sbom release clean

start: build images ## a one-node cluster that serves manifests/examples/hello.yaml
	@hack/start.sh

build: deps $(BIN) ## bin/coracle, or bin/ARCH/coracle for another architecture

$(BIN): $(SOURCES) $(SHIM) $(CHECK)
	@echo "building $@"
	@CGO_ENABLED=0 GOARCH=$(ARCH) hack/build.sh $(GOFLAGS_BIN) -o $@ ./cmd/coracle

# The shim is a separate small static program, embedded in the binary.
$(SHIM): $(shell find cmd/coracle-shim pkg/node/runtime/shim pkg/node/runtime/runtime.go pkg/node/runtime/crilog pkg/node/host/mount pkg/node/host/thread pkg/base/atomicfile -name '*.go' 2>/dev/null) go.mod go.sum
	@echo "building $@"
	@CGO_ENABLED=1 GOARCH=$(ARCH) hack/build.sh $(GOFLAGS_SHIM) -o $(PARTS)coracle-shim ./cmd/coracle-shim
	@$(TOOL) ./hack/pack $(PARTS)coracle-shim $@

# The checker of Buildbarn's configurations, likewise. Only its process loads the Jsonnet evaluator, and only while
# it checks.
$(CHECK): $(shell find cmd/coracle-buildbarn-check pkg/systems/buildbarn/check/program pkg/systems/buildbarn/check/protocol pkg/systems/buildbarn/schema pkg/base/bounded -type f -not -name '*_test.go') go.mod go.sum
	@echo "building $@"
	@CGO_ENABLED=0 GOARCH=$(ARCH) hack/build.sh -trimpath -ldflags "-s -w" -o $(PARTS)coracle-buildbarn-check ./cmd/coracle-buildbarn-check
	@$(TOOL) ./hack/pack $(PARTS)coracle-buildbarn-check $@

images: deps $(IMAGES)/.done ## container images for the tour and most tests, built without internet access

$(IMAGES)/.done: $(shell find hack/images pkg/systems/workers/worker apis/workers -type f -not -name "*_test.go" 2>/dev/null)
	@echo "building images"
	@$(TOOL) ./hack/images -arch $(ARCH) -out $(IMAGES) && touch $@

example-images: deps $(EXAMPLES)/.done ## container images of the example applications

$(EXAMPLES)/.done: $(shell find hack/images/main.go hack/images/archive hack/images/guestbook hack/images/etcd -type f 2>/dev/null) go.mod
	@echo "building images of the examples"
	@$(TOOL) ./hack/images -examples -out $(EXAMPLES) && touch $@

database-images: deps $(DATABASE) ## image of PostgreSQL from downloaded Debian packages of this machine's release

$(DATABASE): $(wildcard hack/images/postgres/*.go hack/images/debian/*.go hack/images/archive/*.go)
	@echo "building PostgreSQL's image"
	@$(TOOL) ./hack/images/postgres -out $@

database: build images database-images ## tests that PostgreSQL on a joined machine keeps acknowledged rows when server, agent and pod are killed
	CORACLE_TEST_DATABASE=1 $(TEST) -v -timeout 15m -run TestPostgreSQL ./test/e2e

buildbarn-images: deps $(BUILDBARN)/.done ## images of Buildbarn's programs for its test; compiles for minutes

$(BUILDBARN)/.done: $(shell find hack/buildbarn hack/images/buildbarn hack/images/archive -type f -not -name "*_test.go" 2>/dev/null)
	@echo "building Buildbarn"
	@$(TOOL) ./hack/images/buildbarn -out $(BUILDBARN) && touch $@

toolchain-image: deps $(TOOLCHAIN) ## image with GCC for the workers of Buildbarn's test, from downloaded Debian packages

$(TOOLCHAIN): $(wildcard hack/images/toolchain/*.go hack/images/debian/*.go hack/images/archive/*.go)
	@echo "building the toolchain's image"
	@$(TOOL) ./hack/images/toolchain -out $@

csi-images: deps $(CSI)/.done ## images of upstream's CSI sidecars for their test; compiles for minutes

$(CSI)/.done: $(shell find hack/csi hack/images/csi hack/images/archive test/csidriver test/nodeplugin -type f -not -name "*_test.go" 2>/dev/null)
	@echo "building CSI's sidecars"
	@$(TOOL) ./hack/images/csi -out $(CSI) && touch $@

deps: ## packages that a new machine needs
	@hack/deps.sh $(if $(CROSS),cross)

test: build images example-images ## the whole test suite, including real containers
	@hack/test.sh

unit: $(SHIM) $(CHECK) images ## vet and the unit tests, with the race detector where it can find something
	@hack/unit.sh

e2e: build images example-images
	$(TEST) -v ./test/e2e/...

upstream: ## Kubernetes' own kube-apiserver, kube-scheduler, kube-controller-manager and etcd in dist/upstream; compiles for minutes
	@hack/upstream.sh

upstream-tests: build images upstream ## tests against Kubernetes' own programs, and of each side on the other's data: TestUpstream...
	CORACLE_TEST_UPSTREAM=1 $(TEST) -v -timeout 40m -p 1 -run '^TestUpstream' ./test/upstream/... ./test/e2e/... ./test/robustness

# BUILDBARN_IMAGES names a folder with other OCI archives of Buildbarn.
buildbarn: build images toolchain-image $(if $(BUILDBARN_IMAGES),,buildbarn-images) ## tests configurations against Buildbarn's schemas, and a real farm, also with Bazel
	@hack/deps.sh bazel
	cd hack/buildbarn && go test -count=1 ./...
	CORACLE_TEST_BUILDBARN=1 $(TEST) -v -timeout 40m -run TestBuildbarn ./test/e2e

# CSI_IMAGES names a folder with OCI archives of the public hostpath driver, to test it instead of the tests' driver.
csi: build images csi-images ## tests a CSI driver with upstream's sidecars, including restarts of driver, server and node
	CORACLE_TEST_CSI=1 $(TEST) -v -timeout 20m -run TestSidecars ./test/e2e

sbom: build ## dist/coracle.cdx.json, the modules in the binary (CycloneDX)
	@$(TOOL) ./hack/sbom -out $(SBOM) -version "$$(bin/coracle version | sed 's/^coracle \(v[^ ,]*\) (\([0-9a-f]*\).*/\1+\2/; s/,.*//')" $(BIN) coracle-shim=$(SHIM) coracle-buildbarn-check=$(CHECK)

# The binaries are linked again, so that both have this commit's stamp. This machine's is first: it runs.
release: ## archives, .debs, install script, image, SBOMs and checksums of a release for amd64 and arm64 in dist
	@hack/deps.sh cross
	@for arch in $(HOST) $(filter-out $(HOST),amd64 arm64); do \
	  $(MAKE) --no-print-directory -W pkg/base/version/version.go sbom ARCH=$$arch || exit; \
	done
	@hack/release/release.sh
	@hack/release/test.sh

# SUITES names other releases of Debian; MACHINE_ACCEL=kvm is for a machine that has it.
machine: images example-images ## the release's package on virtual machines with Debian as it is installed: tour, limits, kill -9, reboot, power cut, purge
	@[ -e dist/coracle_*_amd64.deb ] || $(MAKE) release
	@$(MAKE) --no-print-directory images ARCH=arm64
	@hack/machine/run.sh $(SUITES)

lint: ## golangci-lint, which takes minutes to build the first time
	go tool -modfile=hack/tools/go.mod golangci-lint run ./...

generate: ## deepcopy functions, and the manual's pages of metrics and events
	go generate ./apis/...
	$(TOOL) ./hack/reference

bench: build images ## measures a fresh cluster against the budgets
	@hack/bench.sh

bench-upstream: build ## compares requests with upstream's kube-apiserver and etcd on this machine, as ratios
	@hack/upstream.sh etcd kube-apiserver
	@hack/bench-upstream.sh

conformance: conformance-deps build images ## upstream's conformance suite; FOCUS=regex narrows it
	@hack/conformance.sh "$(FOCUS)"

conformance-sample: conformance-deps build images ## a sample of upstream's conformance suite (test/conformance/sample.txt), in ten minutes
	@hack/conformance.sh --sample

conformance-deps: # fails early, before the long builds
	@hack/deps.sh conformance

clients: build images ## tests a client generated from Coracle's OpenAPI, kubectl, helm, metrics-server and controller-runtime's test suites
	$(TEST) -v -timeout 40m ./test/clients

robustness: build images ## tests that kills lose no acknowledged write and watches miss no event
	$(TEST) -v -timeout 30m ./test/robustness/...

FUZZTIME ?= 30s
fuzz: ## runs every fuzz target for FUZZTIME each
	@hack/fuzz.sh $(FUZZTIME)

nightly: build images ## takes hours: conformance, robustness, clients, attacks, lint, the release, and ten minutes of each fuzz target
	@hack/nightly.sh

clean:
	rm -rf bin dist $(subst /$(ARCH)/,/*/,$(SHIM) $(CHECK))
