package prune

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// answer is how a member was judged for a report, and what that rests on beside the
// spec of the report, which does not change: the root, which lists pages of one
// sequence each, what was wanted of the member then, and who declared what could go.
// Of a report that waits for one member, the others need not be read at each try.
type answer struct {
	root   *v1alpha1.ReportRoot // the very one that the Store had
	wanted map[types.NamespacedName]string
	judged v1alpha1.ReportedCluster
}

// answers to one report, by member.
type answers struct {
	report types.UID
	of     map[string]*answer
}

// holds tells whether a member would be judged as it was.
func (r *Reports) holds(former *answer, c *prune.Cluster) bool {
	if former == nil || c.Unknown != "" || c.Root != former.root || c.ClusterUID != former.judged.ClusterUID || !maps.Equal(c.Wanted, former.wanted) {
		return false
	}
	for i := range former.judged.Candidates {
		is := &former.judged.Candidates[i]
		if r.Board.Declares(is.Namespace, is.Name) != is.DeclaredBy {
			return false
		}
	}
	return true
}

// kept are the answers to a report that were judged at the try before.
func (r *Reports) kept(stored *v1alpha1.PruneReport) map[string]*answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.answers[stored.Name]; a != nil && a.report == stored.UID {
		return a.of
	}
	return nil
}

// keep keeps the answers of a try for the next one, but for those that are open.
func (r *Reports) keep(stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, judged []*answer) {
	next := &answers{report: stored.UID, of: map[string]*answer{}}
	for i, a := range judged {
		if a != nil && a.judged.Unknown == "" {
			next.of[placed[i].Name] = a
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers == nil {
		r.answers = map[string]*answers{}
	}
	r.answers[stored.Name] = next
}

// forget forgets the answers to a report that is made, or is gone.
func (r *Reports) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.answers, name)
}
