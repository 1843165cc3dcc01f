# shellcheck shell=bash disable=SC2034
# What kind-up, kind-down and the offline scripts have in common: where things
# are kept, which names they have, how they speak.

# A step that fails in $(…) ends the script, too.
shopt -s inherit_errexit

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export repository

# Everything that is made here has a name that starts with this, so that
# nothing else is ever touched.
prefix=${OT_KIND_PREFIX:-ot}
cache=${OT_FLEET_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ot-fleet}/kind
bin=$cache/bin
kubeconfigs=$cache/$prefix/kubeconfigs
# A file for each cluster that kind-up has begun to make; once it is finished, with
# its shape in it. Others are nobody's business here, whatever their names.
made=$cache/$prefix/clusters

# With OT_KIND_OFFLINE=1 nothing comes from a registry: the node image and the
# images of what runs on it are built here, from Go modules and Debian's packages.
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

# engine_ready is true where a Docker engine answers.
engine_ready() { docker info >/dev/null 2>&1; }

# use_engine makes sure that a Docker engine answers; where none does, one is
# started by scripts/kind/engine, but only if the variable says so.
use_engine() {
	engine_ready && return
	if [[ -S $cache/engine/docker.sock ]]; then
		export DOCKER_HOST=unix://$cache/engine/docker.sock
		engine_ready && return
	fi
	[[ ${OT_KIND_ENGINE:-$offline} == 1 ]] ||
		fail 'no Docker engine answers: start one, or let scripts/kind/engine start one with OT_KIND_ENGINE=1'
	"$repository/scripts/kind/engine" start
	export DOCKER_HOST=unix://$cache/engine/docker.sock
	engine_ready || fail 'the Docker engine that was started does not answer'
}

# use_tools sets kind, helm and kubectl to programs that are built from their
# modules.
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

# clusters lists those that kind-up has made and that exist.
clusters() {
	local cluster
	for cluster in $("$kind" get clusters 2>/dev/null); do
		[[ -e $made/$cluster ]] && echo "$cluster"
	done
	return 0
}
