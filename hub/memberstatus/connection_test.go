package memberstatus_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// A pipeline changes the spec and waits for Ready: what is known by the former connection
// does not count for the new generation.
func TestReadyWaitsForTheSpecInForce(t *testing.T) {
	pull := func(m *v1alpha1.MemberCluster) {
		m.Spec.Connection = v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}}
	}
	elsewhere := func(m *v1alpha1.MemberCluster) { m.Spec.Connection.KubeconfigSecretRef.Name = "elsewhere" }
	type change func(before, after *v1alpha1.MemberCluster, link *v1alpha1.MemberLink)
	// carried has the carrier try the connection of the changed spec.
	carried := func(_, after *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) {
		link.Status.Connection = after.ConnectionID()
	}
	heard := func(b, after *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) {
		carried(b, after, link)
		link.Status.ReportConnection = after.ConnectionID()
	}
	failed := func(b, after *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) {
		carried(b, after, link)
		link.Status.Reachable, link.Status.Reason, link.Status.Message = false, v1alpha1.ReasonUnreachable, "no answer"
	}
	// older has a carrier that does not say which spec it connected for.
	older := func(_, _ *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) {
		link.Status.Connection, link.Status.ReportConnection = "", ""
	}
	byAgent := func(_, after *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) {
		link.Spec.Mode, link.Status.Carrier = v1alpha1.LinkPull, "agent/boot"
	}
	all := func(changes ...change) change {
		return func(before, after *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) {
			for _, do := range changes {
				do(before, after, link)
			}
		}
	}
	assigned := func(_, _ *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) { link.Spec.Mode = v1alpha1.LinkPull }
	const ready = string(v1alpha1.ReasonReady)
	for name, tt := range map[string]struct {
		// before and spec change the spec that the carrier knows, and the one in force.
		before, spec func(*v1alpha1.MemberCluster)
		link         change
		wantReady    string // its reason
		want         metav1.ConditionStatus
	}{
		"unchanged":                        {wantReady: ready, want: metav1.ConditionTrue},
		"unchanged, of an older carrier":   {link: older, wantReady: ready, want: metav1.ConditionTrue},
		"label":                            {spec: func(m *v1alpha1.MemberCluster) { m.Labels = map[string]string{"a": "b"} }, wantReady: ready, want: metav1.ConditionTrue},
		"another Secret, not tried":        {spec: elsewhere, wantReady: v1alpha1.ReasonConnectionChanged, want: metav1.ConditionUnknown},
		"another Secret, it fails":         {spec: elsewhere, link: failed, wantReady: v1alpha1.ReasonUnreachable, want: metav1.ConditionFalse},
		"another Secret, no report yet":    {spec: elsewhere, link: carried, wantReady: v1alpha1.ReasonConnectionChanged, want: metav1.ConditionUnknown},
		"another Secret, and its report":   {spec: elsewhere, link: heard, wantReady: ready, want: metav1.ConditionTrue},
		"another Secret, an older carrier": {spec: elsewhere, link: older, wantReady: ready, want: metav1.ConditionTrue},
		"agentNamespace, not tried":        {spec: func(m *v1alpha1.MemberCluster) { m.Spec.AgentNamespace = "other" }, wantReady: v1alpha1.ReasonConnectionChanged, want: metav1.ConditionUnknown},
		"TLS verification, not tried":      {spec: func(m *v1alpha1.MemberCluster) { m.Spec.InsecureSkipTLSVerify = true }, wantReady: v1alpha1.ReasonConnectionChanged, want: metav1.ConditionUnknown},
		"recreated, not tried":             {spec: func(m *v1alpha1.MemberCluster) { m.UID = "recreated" }, wantReady: v1alpha1.ReasonConnectionChanged, want: metav1.ConditionUnknown},

		"pull, not assigned":                      {spec: pull, wantReady: v1alpha1.ReasonConnectionChanged, want: metav1.ConditionUnknown},
		"pull, still by a replica":                {spec: pull, link: assigned, wantReady: v1alpha1.ReasonConnectionChanged, want: metav1.ConditionUnknown},
		"pull, still by an older replica":         {spec: pull, link: all(assigned, older), wantReady: v1alpha1.ReasonConnectionChanged, want: metav1.ConditionUnknown},
		"pull, by the agent":                      {spec: pull, link: all(byAgent, heard), wantReady: ready, want: metav1.ConditionTrue},
		"pull, by an older agent":                 {spec: pull, link: all(byAgent, older), wantReady: ready, want: metav1.ConditionTrue},
		"acceptedKey in pull mode":                {before: pull, spec: func(m *v1alpha1.MemberCluster) { m.Spec.Connection.Pull.AcceptedKey = "SHA256:a" }, link: byAgent, wantReady: ready, want: metav1.ConditionTrue},
		"back from pull, still by the agent":      {before: pull, spec: func(m *v1alpha1.MemberCluster) { m.Spec.Connection = newMember().Spec.Connection }, link: byAgent, wantReady: v1alpha1.ReasonConnectionChanged, want: metav1.ConditionUnknown},
		"back from pull, still by an older agent": {before: pull, spec: func(m *v1alpha1.MemberCluster) { m.Spec.Connection = newMember().Spec.Connection }, link: all(byAgent, older, func(_, _ *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) { link.Spec.Mode = v1alpha1.LinkPush }), wantReady: v1alpha1.ReasonConnectionChanged, want: metav1.ConditionUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			before := newMember()
			if tt.before != nil {
				tt.before(before)
			}
			after := before.DeepCopy()
			after.Generation++
			if tt.spec != nil {
				tt.spec(after)
			}
			link := &v1alpha1.MemberLink{
				Spec: v1alpha1.MemberLinkSpec{Mode: v1alpha1.LinkPush},
				Status: v1alpha1.MemberLinkStatus{
					Known: true, Reachable: true, Reason: v1alpha1.ReasonConnected, Message: "connected", Carrier: "hub-0",
					Connection: before.ConnectionID(), ReportConnection: before.ConnectionID(),
				},
			}
			if tt.link != nil {
				tt.link(before, after, link)
			}
			v := healthyInput()
			v.Member, v.Connection = after, memberstatus.NewConnection(after, link)
			got, _ := memberstatus.Compute(v)
			require.Equal(t, after.Generation, got.ObservedGeneration)
			statuscheck.RequireOneTrue(t, got.Conditions)
			c := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionReady)
			assert.Equal(t, tt.wantReady, c.Reason, c.Message)
			assert.Equal(t, tt.want, c.Status)
			assert.Equal(t, tt.want != metav1.ConditionTrue, meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionReconciling))
			// Rollouts and the budget go by this one: a good connection changes in a moment.
			assert.True(t, meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionAgentHealthy))
		})
	}
}

func newMember() *v1alpha1.MemberCluster {
	return &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", UID: "member", Generation: 7},
		Spec:       v1alpha1.MemberClusterSpec{AgentNamespace: "ot-agent", Connection: v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "frankfurt"}}},
	}
}

// Conditions of other controllers are about the generation that those have seen.
func TestConditionsOfAnEarlierSpecAreUnknown(t *testing.T) {
	for name, tt := range map[string]struct {
		generation int64
		status     metav1.ConditionStatus
		wantReason string
	}{
		"this generation":           {7, metav1.ConditionTrue, "AsGiven"},
		"an earlier one":            {6, metav1.ConditionTrue, v1alpha1.ReasonConnectionChanged},
		"an earlier one, a problem": {6, metav1.ConditionFalse, "AsGiven"},
	} {
		t.Run(name, func(t *testing.T) {
			given := func(kind string) *metav1.Condition {
				return &metav1.Condition{Type: kind, Status: tt.status, Reason: "AsGiven", ObservedGeneration: tt.generation}
			}
			for _, kind := range []string{v1alpha1.ConditionJoined, v1alpha1.ConditionAgentInstalled} {
				v := healthyInput()
				if kind == v1alpha1.ConditionJoined {
					v.Joined = given(kind)
				} else {
					v.Installed = given(kind)
				}
				got, _ := memberstatus.Compute(v)
				assert.Equal(t, tt.wantReason, meta.FindStatusCondition(got.Conditions, kind).Reason, kind)
				wantReady := tt.wantReason == "AsGiven" && tt.status == metav1.ConditionTrue
				assert.Equal(t, wantReady, meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionReady), kind)
			}
		})
	}
}
