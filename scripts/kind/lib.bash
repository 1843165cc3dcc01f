# shellcheck shell=bash disable=SC2034
# Paths, names and output of kind-up, kind-down and the offline scripts.

# A failure in $(…) ends the script as well.
shopt -s inherit_errexit

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export repository

# Names of everything created here begin with this prefix: nothing else is touched.
prefix=${OT_KIND_PREFIX:-ot}
cache=${OT_FLEET_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ot-fleet}/kind
bin=$cache/bin
kubeconfigs=$cache/$prefix/kubeconfigs
# A file for each cluster that kind-up has begun to create; it has the shape once the cluster
# is finished. Clusters without a file are left alone, whatever their names.
made=$cache/$prefix/clusters

# With OT_KIND_OFFLINE=1 nothing is pulled from a registry: the node image and the images on
# it are built here, from Go modules and Debian's packages.
offline=${OT_KIND_OFFLINE:-0}
offline_repository=localhost/ot-kind
offline_node_image=$offline_repository/node:latest

kubernetes_version=v1.36.3
cdi_version=v1.65.0
kubevirt_version=v1.8.0

say() { printf '%s [%d:%02d] %s\n' "${program:-kind}" $((SECONDS / 60)) $((SECONDS % 60)) "$*" >&2; }

fail() {
	say "error: $*"
	exit 1
}

# engine_ready succeeds where a Docker engine is running.
engine_ready() { docker info >/dev/null 2>&1; }

# use_engine fails without a Docker engine. With OT_KIND_ENGINE=1 it starts one with
# scripts/kind/engine.
use_engine() {
	engine_ready && return
	if [[ -S $cache/engine/docker.sock ]]; then
		export DOCKER_HOST=unix://$cache/engine/docker.sock
		engine_ready && return
	fi
	[[ ${OT_KIND_ENGINE:-$offline} == 1 ]] ||
		fail 'no Docker engine is running: start one, or set OT_KIND_ENGINE=1 to start one with scripts/kind/engine'
	"$repository/scripts/kind/engine" start
	export DOCKER_HOST=unix://$cache/engine/docker.sock
	engine_ready || fail 'the started Docker engine does not answer'
}

# use_tools builds kind, helm and kubectl from their modules and sets their variables.
use_tools() {
	mkdir -p "$bin"
	GOWORK=off GOFLAGS='' CGO_ENABLED=0 go build -C "$repository/scripts/kind/modules/kind" -trimpath -ldflags='-s -w' -o "$bin/kind" sigs.k8s.io/kind
	local tools
	tools=$(cd "$repository" && go run ./e2e/harness/binaries/build helm kubectl)
	helm=$(sed -n 1p <<<"$tools")
	kubectl=$(sed -n 2p <<<"$tools")
	kind=$bin/kind
	export kind helm kubectl
}

# clusters lists the existing clusters that kind-up has created.
clusters() {
	local cluster
	for cluster in $("$kind" get clusters 2>/dev/null); do
		[[ -e $made/$cluster ]] && echo "$cluster"
	done
	return 0
}
