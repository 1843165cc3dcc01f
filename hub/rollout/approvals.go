package rollout

import (
	"fmt"
	"slices"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// isApproved reports whether an approval covers the source of a cluster. Invariant: an approval
// covers the sources that it names, and without any that of the template alone: what an override
// or a label changes is approved of again.
func (e *evaluation) isApproved(c *placedCluster) bool {
	wave, digest := e.waves[c.wave].name, c.effective.Digest
	return slices.ContainsFunc(e.Image.Spec.Approvals, func(a v1alpha1.Approval) bool {
		if a.Wave != wave || a.Version != e.version.Version {
			return false
		}
		if len(a.Sources) == 0 {
			return digest == e.templateDigest
		}
		return slices.Contains(a.Sources, digest)
	})
}

// isUnapproved reports whether the cluster waits for an approval. What has no source yet has
// nothing that could be approved.
func (c *placedCluster) isUnapproved() bool { return !c.isApproved && c.hasSource() }

// setPendingApproval sets what an approval of the current wave has to name. Clusters that are
// offline are among them: they catch up later.
func (e *evaluation) setPendingApproval() {
	w := &e.waves[e.currentWave]
	if w.counts.unapproved == 0 {
		return
	}
	pending := &v1alpha1.PendingApproval{Wave: w.name, Sources: e.pendingSources()}
	pending.Sources = pending.Sources[:min(len(pending.Sources), v1alpha1.MaxPendingSources)]
	e.status.PendingApproval = pending
}

// pendingSources returns the sources of the current wave that no approval covers, sorted.
func (e *evaluation) pendingSources() (sources []string) {
	for i := range e.placed {
		c := &e.placed[i]
		if int(c.wave) == e.currentWave && !c.started && c.isUnapproved() && (c.state == v1alpha1.ClusterToApply || c.state == v1alpha1.ClusterDeferred) {
			sources = append(sources, c.effective.Digest)
		}
	}
	slices.Sort(sources)
	return slices.Clip(slices.Compact(sources))
}

// approvalMessage says what is to be approved, and how.
func (e *evaluation) approvalMessage(w *wave) string {
	sources := e.pendingSources()
	clusters := pluralClusters(w.counts.unapproved)
	if len(sources) == 1 && sources[0] == e.templateDigest {
		return fmt.Sprintf("wave %s, with %s to start, needs approval: %s", w.name, clusters, e.approvalCommand(w.name))
	}
	text := fmt.Sprintf("wave %s, with %s to start, needs approval of %s: %s names them, as status.pendingApproval does",
		w.name, clusters, pluralSources(len(sources)), approveVerb(e.Image.Name, w.name))
	if len(sources) > v1alpha1.MaxPendingSources {
		text += fmt.Sprintf(". An approval names at most %d: split the wave, or have fewer clusters get a source of their own", v1alpha1.MaxPendingSources)
	}
	return text
}

func pluralSources(n int) string {
	if n == 1 {
		return "1 source"
	}
	return fmt.Sprintf("%d sources", n)
}

// approvalCommand returns the command by which a person approves of the template. Where the wave
// has an approval that names other sources it is the plugin's, which adds to it: the list has one
// entry for each wave and version.
func (e *evaluation) approvalCommand(wave string) string {
	image, version := e.Image.Name, e.version.Version
	if slices.ContainsFunc(e.Image.Spec.Approvals, func(a v1alpha1.Approval) bool { return a.Wave == wave && a.Version == version }) {
		return approveVerb(image, wave)
	}
	return fmt.Sprintf(`kubectl patch fdi %s --type=json -p '[{"op":"add","path":"/spec/approvals/-","value":{"wave":%q,"version":%q,"by":"<your user name>"}}]'`, image, wave, version)
}

func approveVerb(image, wave string) string {
	return fmt.Sprintf("kubectl ot rollout approve %s --wave %s", image, wave)
}
