package mailbox

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestMergeFindings(t *testing.T) {
	failed := errors.New("no answer")
	ahead := v1alpha1.PlanVersion{Epoch: 4, Sequence: 7}
	for name, tt := range map[string]struct {
		before  Findings
		up      UpResult
		upErr   error
		down    DownResult
		downErr error
		want    Findings
	}{
		"nothing yet":           {want: Findings{}},
		"first report":          {up: UpResult{RootSequence: 5, Written: 1}, want: Findings{ConfirmedSequence: 5}},
		"by a new connection":   {before: Findings{Connection: "new", ReportConnection: "old"}, up: UpResult{RootSequence: 5}, want: Findings{Connection: "new", ReportConnection: "new", ConfirmedSequence: 5}},
		"no report by it":       {before: Findings{Connection: "new", ReportConnection: "old"}, up: UpResult{ReportMissing: true}, want: Findings{Connection: "new", ReportConnection: "old"}},
		"another by it":         {before: Findings{Connection: "new", ReportConnection: "old"}, up: UpResult{OtherCluster: "b"}, want: Findings{OtherCluster: "b", Connection: "new", ReportConnection: "old"}},
		"failed by it":          {before: Findings{Connection: "new", ReportConnection: "old"}, up: UpResult{RootSequence: 5}, upErr: failed, want: Findings{Connection: "new", ReportConnection: "old", ConfirmedSequence: 5}},
		"by an unknown one":     {before: Findings{ReportConnection: "old"}, up: UpResult{RootSequence: 5}, want: Findings{ReportConnection: "old", ConfirmedSequence: 5}},
		"a later one":           {before: Findings{ConfirmedSequence: 5}, up: UpResult{RootSequence: 9}, want: Findings{ConfirmedSequence: 5}},
		"a lower one":           {before: Findings{ConfirmedSequence: 5}, up: UpResult{RootSequence: 2}, want: Findings{ConfirmedSequence: 2}},
		"no report":             {before: Findings{ConfirmedSequence: 5}, up: UpResult{ReportMissing: true}, want: Findings{ConfirmedSequence: 5}},
		"older":                 {up: UpResult{ReportOlder: true, RootSequence: 5}, want: Findings{ReportOlder: true, ConfirmedSequence: 5}},
		"no longer older":       {before: Findings{ReportOlder: true, ConfirmedSequence: 5}, up: UpResult{RootSequence: 6}, want: Findings{ConfirmedSequence: 5}},
		"another":               {before: Findings{ConfirmedSequence: 5}, up: UpResult{OtherCluster: "b"}, want: Findings{OtherCluster: "b", ConfirmedSequence: 5}},
		"no longer another":     {before: Findings{OtherCluster: "b"}, up: UpResult{RootSequence: 1}, want: Findings{ConfirmedSequence: 1}},
		"up failed":             {before: Findings{OtherCluster: "b", ReportOlder: true}, upErr: failed, want: Findings{OtherCluster: "b", ReportOlder: true}},
		"a page was refused":    {up: UpResult{RootSequence: 5}, upErr: failed, want: Findings{ConfirmedSequence: 5}},
		"a newer plan is there": {down: DownResult{NewerPlan: &ahead}, want: Findings{NewerPlan: ahead}},
		"it was followed":       {before: Findings{NewerPlan: ahead}, want: Findings{}},
		"a newer grant":         {down: DownResult{NewerGrant: ptr.To[int64](3)}, want: Findings{NewerGrant: 3}},
		"a field is dropped":    {down: DownResult{DroppedFields: []string{"a"}}, want: Findings{DroppedFields: []string{"a"}}},
		"it was just written":   {before: Findings{DroppedFields: []string{"a"}}, down: DownResult{Written: []string{"ClusterPlan"}}, want: Findings{DroppedFields: []string{"a"}}},
		"it is kept":            {before: Findings{DroppedFields: []string{"a"}}, want: Findings{}},
		"down failed":           {before: Findings{NewerPlan: ahead, NewerGrant: 3, DroppedFields: []string{"a"}}, downErr: failed, want: Findings{NewerPlan: ahead, NewerGrant: 3, DroppedFields: []string{"a"}}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, tt.before.Merge(tt.up, tt.upErr, tt.down, tt.downErr))
		})
	}
}

func TestSetStatus(t *testing.T) {
	status := &v1alpha1.MemberLinkStatus{Carrier: "r", Reachable: true, Ahead: &v1alpha1.PlanVersion{Sequence: 1}, Confirmed: 3}
	Findings{ReportOlder: true, OtherCluster: "b"}.SetStatus(status, "c")
	require.Equal(t, &v1alpha1.MemberLinkStatus{Carrier: "r", Reachable: true, Challenge: "c", Older: true, Another: "b"}, status)
	Findings{SyncError: "refused:\n\x1b[2J https://user:secret@hub/a"}.SetStatus(status, "c")
	require.Equal(t, "refused:  [2J https://hub/a", status.SyncError)
	status.SyncError = ""
	ahead := v1alpha1.PlanVersion{Epoch: 4, Sequence: 7}
	Findings{NewerPlan: ahead, NewerGrant: 2, ConfirmedSequence: 4}.SetStatus(status, "d")
	require.Equal(t, &v1alpha1.MemberLinkStatus{
		Carrier: "r", Reachable: true, Challenge: "d", Confirmed: 4, Ahead: &ahead, AheadGrant: 2,
	}, status)
}

func TestFindingsFromStatus(t *testing.T) {
	findings := Findings{OtherCluster: "other", ReportOlder: true, NewerPlan: v1alpha1.PlanVersion{Epoch: 1, Sequence: 2}, NewerGrant: 3, DroppedFields: []string{"ClusterPlan.spec.images"}, ConfirmedSequence: 4, ReportConnection: "b"}
	var status v1alpha1.MemberLinkStatus
	findings.SetStatus(&status, "mine")
	require.Equal(t, findings, FindingsFromStatus(&status, "mine"))

	findings.ConfirmedSequence = 0
	require.Equal(t, findings, FindingsFromStatus(&status, "another process's"), "a confirmation of another challenge is ignored")
	require.Equal(t, Findings{}, FindingsFromStatus(&v1alpha1.MemberLinkStatus{}, ""))
}

// A cache hands out objects without a copy.
func TestAnswerToAnUpdateDoesNotChangeTheCachedStatus(t *testing.T) {
	cached := &v1alpha1.MemberLinkStatus{Dropped: []string{"ClusterPlan.spec.images"}, Ahead: &v1alpha1.PlanVersion{Sequence: 1}}
	next := cached.DeepCopy()
	FindingsFromStatus(cached, "").SetStatus(next, "")
	require.NoError(t, utiljson.Unmarshal([]byte(`{"dropped":["another"],"ahead":{"sequence":2}}`), next))
	require.Equal(t, &v1alpha1.MemberLinkStatus{Dropped: []string{"ClusterPlan.spec.images"}, Ahead: &v1alpha1.PlanVersion{Sequence: 1}}, cached)
}
