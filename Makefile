# Every tool is pinned in a module of its own and run through the Go toolchain;
# the first use builds it, later uses take it from Go's build cache.
tool = go tool -modfile=$(1)/go.mod $(notdir $(1))

CONTROLLER_GEN := $(call tool,scripts/tools/controller-gen)
GOLANGCI_LINT  := $(call tool,scripts/tools/golangci-lint)
CRD_REF_DOCS   := $(call tool,scripts/tools/crd-ref-docs)
HELM_DOCS      := $(call tool,scripts/tools/helm-docs)
HELM_UNITTEST  := $(call tool,scripts/tools/helm-unittest)
HELM           := $$(go run ./e2e/harness/binaries/build helm)

VERSION      ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
DIST         ?= dist
# What the kubectl plugin is built for.
PLUGIN_PLATFORMS ?= linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64
KUBE_VERSION := 1.36.0
# Kinds that the hub alone serves, and those that hub and agent meet in.
HUB_CRDS     := pelotech.ot_memberclusters.yaml pelotech.ot_fleetdiskimages.yaml pelotech.ot_prunereports.yaml pelotech.ot_prunereportpages.yaml pelotech.ot_imageprunes.yaml \
                pelotech.ot_memberlinks.yaml pelotech.ot_clusterjoins.yaml
MAILBOX_CRDS := pelotech.ot_clusterplans.yaml pelotech.ot_clusterreports.yaml pelotech.ot_transfergrants.yaml
# What `make generate` writes; `make verify` fails where it differs from the commit.
GENERATED    := 'api/**/zz_generated.*.go' 'charts/*/files/**' 'charts/*/README.md' 'docs/reference/**' ui/src/api.ts 'ui/dist/**'

# Packages that start control planes are tested one beside another. They wait for half of
# their time, so four keep two cores busy: with six no whole run is faster, and an API server
# did not start in time. Each may need 4 GiB, and two fit into 8. What go vet would look for is
# in what make lint looks for.
TEST_PACKAGES ?= $(shell awk '/^MemAvailable/ {n = int($$2 / (4 * 1024 * 1024))} END {print (n > 4 ? 4 : n < 2 ? 2 : n)}' /proc/meminfo 2>/dev/null)
TEST_FLAGS    ?= -p $(or $(TEST_PACKAGES),2) -vet=off
TEST_TIMEOUT ?= 30m
# The longest first: they would otherwise run alone in the end.
TEST_ORDER   := ./e2e/suites/agent ./e2e/suites/workspaces ./e2e/suites/cli ./...

CACHE := $(or $(OT_FLEET_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ot-fleet)
# Where scripts/kind-up says what it has made.
KIND_FLEET := $(CACHE)/kind/$(or $(OT_KIND_PREFIX),ot)/fleet.json

# The flags that the control planes' programs are built with, whatever the environment adds:
# packages that they share with ours, some 800, are compiled once, and in every checkout the same.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)

.NOTPARALLEL:

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Watch a hub and three clusters: budgets, machines, a rollout, an outage
	@go run ./e2e/demo

.PHONY: up
up: cli ## Leave a hub and three clusters running in the background, to try kubectl ot on
	@go run ./e2e/demo up '$(CACHE)/up'

.PHONY: down
down: ## End them
	@go run ./e2e/demo down '$(CACHE)/up'

.PHONY: pictures
pictures: ## Draw the pictures of the dashboard in docs/pictures (needs chromium-headless-shell)
	@go test ./e2e/suites/dashboard -run TestPictures -count=1 -rewrite

.PHONY: test
test: ## Run all tests (needs Go, make and git only)
	@# Without Go's cache of results: it does not know which programs a journey has run.
	go -C cli test -count=1 -vet=off ./...
	@go run ./scripts/dashboard -test
	@# The compiler and the linker collect garbage less often: two cores are scarcer than memory.
	GOGC=400 GOMEMLIMIT=1GiB go run ./scripts/testreport -count=1 $(TEST_FLAGS) -timeout $(TEST_TIMEOUT) $(TEST_ORDER)

.PHONY: test-long
test-long: TEST_TIMEOUT = 120m
test-long: export OT_FLEET_LONG = 1
test-long: test ## Run all tests, the long sweeps included, and the fleet suites in pull mode too
	OT_FLEET_PULL=all go run ./scripts/testreport -count=1 $(TEST_FLAGS) -timeout $(TEST_TIMEOUT) ./e2e/suites/fleet ./e2e/suites/rollout ./e2e/suites/prune

.PHONY: test-versions
test-versions: ## Run a part of the suites with the oldest, the pinned and the newest versions; writes docs/reference/versions.md
	go run ./e2e/versions -lanes '$(LANES)' -suites '$(SUITES)'

.PHONY: kind-up
kind-up: ## Make a hub and three members as clusters of kind (kind-configs/README.md)
	scripts/kind-up

.PHONY: kind-demo
kind-demo: kind-up ## Watch them: budgets, a machine, a rollout, an outage, a prune
	scripts/kind-demo

.PHONY: e2e-kind
e2e-kind: kind-up ## Take them through the journeys; kind-configs/results.md says what came of it
	OT_FLEET_KIND=$(KIND_FLEET) OT_FLEET_RESULTS=$(CURDIR)/kind-configs/results.md \
		go test ./e2e/suites/kind -count=1 -vet=off -timeout 3h -v

.PHONY: bench
bench: ## Measure the figures of docs/operate/sizing.md; with BASELINE=<tag>, that version beside them; with WRITE=1, write them there
	@go run ./e2e/bench $(if $(BASELINE),-baseline '$(BASELINE)') $(if $(ONLY),-only '$(ONLY)') $(if $(WRITE),-write docs/operate/sizing.md)

.PHONY: build
build: cli ## Build agent, hub and kubectl-ot into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w -X main.version=$(VERSION)' -o bin/ot-agent ./agent
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w -X main.version=$(VERSION)' -o bin/ot-hub ./hub

.PHONY: cli
cli: ## Build kubectl-ot into bin/
	@go build -C cli -ldflags='-s -w -X main.version=$(VERSION)' -o ../bin/kubectl-ot .

.PHONY: ui
ui: ## Check, test and build the dashboard into ui/dist, which is committed (needs npm)
	@go run ./scripts/dashboard

.PHONY: images
images: ## Build the container images of agent and hub, and the kubectl plugin, into dist/
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} \
		go run ./scripts/images -version $(VERSION) -revision $$(git rev-parse HEAD) -plugin-platforms '$(PLUGIN_PLATFORMS)'

.PHONY: load
load: PLUGIN_PLATFORMS =
load: images ## Build them and load them into Docker, or with KIND=<name> into that cluster
	@for image in agent hub; do archive=dist/ot-$$image-$$(go env GOARCH).tar; \
		if test -n "$(KIND)"; then kind load image-archive "$$archive" --name "$(KIND)"; else docker load -i "$$archive"; fi || exit 1; done

# As the hub does with the chart that it brings: a version that is a number becomes the
# chart's too, and every version is that of its images.
.PHONY: charts
charts: ## Package both charts into dist/, of VERSION
	@number='$(VERSION:v%=%)'; echo "$$number" | grep -Eq '^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$$' || number=; \
	"$(HELM)" package charts/ot-agent charts/ot-hub --destination '$(DIST)' $${number:+--version "$$number"} --app-version '$(VERSION)'

.PHONY: binaries
binaries: ## Build the local control planes' binaries ahead of their first use
	go run ./e2e/harness/binaries/build

.PHONY: generate
generate: ## Write deepcopy code, CRDs, RBAC, docs/reference and ui/src/api.ts from the Go sources, and the charts' pages from their values
	$(CONTROLLER_GEN) object paths=./api/...
	rm -rf charts/*/files/crds charts/*/files/mailbox
	mkdir -p charts/ot-agent/files/crds charts/ot-hub/files/crds charts/ot-agent/files/mailbox charts/ot-hub/files/mailbox
	$(CONTROLLER_GEN) crd paths=./api/v1alpha1 output:crd:artifacts:config=charts/ot-agent/files/crds
	cd charts/ot-agent/files/crds && mv $(HUB_CRDS) ../../../ot-hub/files/crds/ && mv $(MAILBOX_CRDS) ../mailbox/
	cp charts/ot-agent/files/mailbox/*.yaml charts/ot-hub/files/mailbox/
	$(CONTROLLER_GEN) rbac:roleName=ot-agent paths=./agent/... output:rbac:artifacts:config=charts/ot-agent/files/rbac
	$(CONTROLLER_GEN) rbac:roleName=ot-hub paths=./hub/... output:rbac:artifacts:config=charts/ot-hub/files/rbac
	$(HELM_DOCS) --chart-search-root charts --log-level warning
	$(CRD_REF_DOCS) --source-path=api/v1alpha1 --config=scripts/reference/crd-ref-docs.yaml --log-level=ERROR \
		--renderer=markdown --templates-dir=scripts/reference/templates --output-path=docs/reference/api.md
	go run ./scripts/reference
	go run ./scripts/typescript
	go -C cli run . reference > docs/reference/cli.md

.PHONY: lint
lint: ## Check the Go code and its import rules
	$(GOLANGCI_LINT) run
	cd cli && $(call tool,../scripts/tools/golangci-lint) run --config ../.golangci.yml

.PHONY: lint-charts
lint-charts: ## Check the Helm charts and what they make, and run their unit tests
	"$(HELM)" lint --strict --kube-version $(KUBE_VERSION) charts/*/
	$(HELM_UNITTEST) --strict charts/*/
	@openapi="$$(go -C e2e/harness/binaries/kubernetes mod download -json k8s.io/kubernetes | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/api/openapi-spec/swagger.json"; helm="$(HELM)"; \
	for chart in charts/*/; do for values in "$$chart/values.yaml" "e2e/suites/chart/everything/both.yaml,e2e/suites/chart/everything/$$(basename $$chart).yaml"; do \
		"$$helm" template any "$$chart" --kube-version $(KUBE_VERSION) --values "$$values" | \
			(cd scripts/tools/kubeconform && go run . -openapi "$$openapi") || { echo "lint-charts: of $$chart with $$values" >&2; exit 1; }; done; done

.PHONY: lint-alerts
lint-alerts: ## Run the unit tests of the alerts, and parse what the dashboards ask
	cd scripts/tools/alerts && go run . $(CURDIR)/charts/*/monitoring/alerts_test.yaml $(CURDIR)/charts/*/monitoring/dashboard.json

.PHONY: lint-prose
lint-prose: ## Check names, phrases and the length of pages (CONTRIBUTING.md)
	@go run ./scripts/prose

.PHONY: lint-vuln
lint-vuln: ## Look for known vulnerabilities in what agent and hub call, where the database can be reached
	@go run ./scripts/vulncheck

.PHONY: lint-ui
lint-ui: ## Check, test and build the dashboard elsewhere, and compare it with ui/dist, where npm is
	@go run ./scripts/dashboard -check

.PHONY: verify
verify: generate lint lint-prose lint-charts lint-alerts lint-vuln lint-ui ## Regenerate, lint, and fail unless what is generated is committed
	@git diff --exit-code HEAD -- $(GENERATED) || \
		{ echo 'verify: generated files differ from their sources: commit what make generate wrote' >&2; exit 1; }
	@new="$$(git ls-files --others --exclude-standard -- $(GENERATED))"; test -z "$$new" || \
		{ printf 'verify: generated files are not committed:\n%s\n' "$$new" >&2; exit 1; }
