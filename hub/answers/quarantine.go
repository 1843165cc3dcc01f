package answers

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/quarantine"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// DescribeQuarantine returns the quarantine of a member as the API server stores it, and what it
// would do to begin one or to end it.
func DescribeQuarantine(member *v1alpha1.MemberCluster) readapi.MemberQuarantineDetail {
	d := readapi.MemberQuarantineDetail{
		Member: member.Name, ResourceVersion: member.ResourceVersion,
		Begin: decideQuarantine(member, quarantine.Request{}), End: decideQuarantine(member, quarantine.Request{End: true}),
	}
	q := member.Spec.Quarantine
	if q == nil {
		return d
	}
	d.Quarantined, d.Reason = true, v1alpha1.SanitizeText(q.Reason, quarantine.MaxReasonLength)
	if c := meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionQuarantined); c != nil {
		d.Since = &c.LastTransitionTime
	}
	if setters := quarantine.Setters(member); len(setters) > 0 {
		d.SetBy, d.SetAt = setters[0].Manager, setters[0].At
	}
	return d
}

func decideQuarantine(member *v1alpha1.MemberCluster, request quarantine.Request) readapi.QuarantineDecision {
	change, err := quarantine.Decide(request, member)
	if err != nil {
		return readapi.QuarantineDecision{Effects: []string{}, Refused: err.Error()}
	}
	return readapi.QuarantineDecision{Effects: change.Effects, ByHand: change.ByHand}
}
