package prunereport

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// judgedMember is the judgement of a member and what it rests on beside the spec of the
// report, which never changes: the root, which lists each page with its sequence, the
// wanted images, and who declares the candidates. While a report waits for one member,
// the others are not read again at every attempt.
type judgedMember struct {
	root     *v1alpha1.ReportRoot // compared by identity
	wantedBy map[types.NamespacedName]string
	result   v1alpha1.ReportedCluster
}

// judgedMembers are the judgements for one report, by member.
type judgedMembers struct {
	reportUID types.UID
	byMember  map[string]*judgedMember
}

// stillHolds reports whether a member would be judged as before.
func (r *Reconciler) stillHolds(former *judgedMember, c *prune.Cluster) bool {
	if former == nil || c.Unknown != "" || c.Root != former.root || c.ClusterUID != former.result.ClusterUID || !maps.Equal(c.WantedBy, former.wantedBy) {
		return false
	}
	for i := range former.result.Candidates {
		img := &former.result.Candidates[i]
		if r.Rollouts.DeclaredBy(img.Namespace, img.Name) != img.DeclaredBy {
			return false
		}
	}
	return true
}

// reusableJudged returns the judgements of the last attempt, by member.
func (r *Reconciler) reusableJudged(stored *v1alpha1.PruneReport) map[string]*judgedMember {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j := r.judged[stored.Name]; j != nil && j.reportUID == stored.UID {
		return j.byMember
	}
	return nil
}

// keepJudged keeps the judgements of an attempt, without unknown members.
func (r *Reconciler) keepJudged(stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, judged []*judgedMember) {
	next := &judgedMembers{reportUID: stored.UID, byMember: map[string]*judgedMember{}}
	for i, j := range judged {
		if j != nil && j.result.Unknown == "" {
			next.byMember[placed[i].Name] = j
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.judged == nil {
		r.judged = map[string]*judgedMembers{}
	}
	r.judged[stored.Name] = next
}

func (r *Reconciler) forgetJudged(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.judged, name)
}
