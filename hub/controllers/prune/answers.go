package prune

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// judgedAnswer is how a member was judged for a report, and what that rests on beside the
// spec of the report, which does not change: the root, which lists pages of one
// sequence each, what was wanted of the member then, and who declared what could go.
// Of a report that waits for one member, the others need not be read at each try.
type judgedAnswer struct {
	root     *v1alpha1.ReportRoot // the very one that the Store had
	wantedBy map[types.NamespacedName]string
	judged   v1alpha1.ReportedCluster
}

// judgedAnswers to one report, by member.
type judgedAnswers struct {
	report   types.UID
	byMember map[string]*judgedAnswer
}

// stillHolds tells whether a member would be judged as it was.
func (r *ReportReconciler) stillHolds(former *judgedAnswer, c *prune.Cluster) bool {
	if former == nil || c.Unknown != "" || c.Root != former.root || c.ClusterUID != former.judged.ClusterUID || !maps.Equal(c.WantedBy, former.wantedBy) {
		return false
	}
	for i := range former.judged.Candidates {
		is := &former.judged.Candidates[i]
		if r.Rollouts.DeclaredBy(is.Namespace, is.Name) != is.DeclaredBy {
			return false
		}
	}
	return true
}

// reusableAnswers are the answers to a report that were judged at the try before.
func (r *ReportReconciler) reusableAnswers(stored *v1alpha1.PruneReport) map[string]*judgedAnswer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.answers[stored.Name]; a != nil && a.report == stored.UID {
		return a.byMember
	}
	return nil
}

// keepAnswers keeps the answers of a try for the next one, but for those that are open.
func (r *ReportReconciler) keepAnswers(stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, judged []*judgedAnswer) {
	next := &judgedAnswers{report: stored.UID, byMember: map[string]*judgedAnswer{}}
	for i, a := range judged {
		if a != nil && a.judged.Unknown == "" {
			next.byMember[placed[i].Name] = a
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers == nil {
		r.answers = map[string]*judgedAnswers{}
	}
	r.answers[stored.Name] = next
}

// forgetAnswers forgets the answers to a report that is made, or is gone.
func (r *ReportReconciler) forgetAnswers(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.answers, name)
}
