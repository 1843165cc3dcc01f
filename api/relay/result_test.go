package relay

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestMerge(t *testing.T) {
	failed := errors.New("no answer")
	ahead := v1alpha1.PlanVersion{Epoch: 4, Sequence: 7}
	for name, tt := range map[string]struct {
		before  Result
		up      Up
		upErr   error
		down    Down
		downErr error
		want    Result
	}{
		"nothing yet":           {want: Result{}},
		"first report":          {up: Up{Root: 5, Carried: 1}, want: Result{Confirmed: 5}},
		"a later one":           {before: Result{Confirmed: 5}, up: Up{Root: 9}, want: Result{Confirmed: 5}},
		"a lower one":           {before: Result{Confirmed: 5}, up: Up{Root: 2}, want: Result{Confirmed: 2}},
		"no report":             {before: Result{Confirmed: 5}, up: Up{Missing: true}, want: Result{Confirmed: 5}},
		"older":                 {up: Up{Older: true, Root: 5}, want: Result{Older: true, Confirmed: 5}},
		"no longer older":       {before: Result{Older: true, Confirmed: 5}, up: Up{Root: 6}, want: Result{Confirmed: 5}},
		"another":               {before: Result{Confirmed: 5}, up: Up{Another: "b"}, want: Result{Another: "b", Confirmed: 5}},
		"no longer another":     {before: Result{Another: "b"}, up: Up{Root: 1}, want: Result{Confirmed: 1}},
		"up failed":             {before: Result{Another: "b", Older: true}, upErr: failed, want: Result{Another: "b", Older: true}},
		"a page was refused":    {up: Up{Root: 5}, upErr: failed, want: Result{Confirmed: 5}},
		"a newer plan is there": {down: Down{Ahead: &ahead}, want: Result{Ahead: ahead}},
		"it was followed":       {before: Result{Ahead: ahead}, want: Result{}},
		"a newer grant":         {down: Down{AheadGrant: ptr.To[int64](3)}, want: Result{AheadGrant: 3}},
		"a field is dropped":    {down: Down{Dropped: []string{"a"}}, want: Result{Dropped: []string{"a"}}},
		"it was just written":   {before: Result{Dropped: []string{"a"}}, down: Down{Carried: []string{"ClusterPlan"}}, want: Result{Dropped: []string{"a"}}},
		"it is kept":            {before: Result{Dropped: []string{"a"}}, want: Result{}},
		"down failed":           {before: Result{Ahead: ahead, AheadGrant: 3, Dropped: []string{"a"}}, downErr: failed, want: Result{Ahead: ahead, AheadGrant: 3, Dropped: []string{"a"}}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, tt.before.Merge(tt.up, tt.upErr, tt.down, tt.downErr))
		})
	}
}

func TestTell(t *testing.T) {
	status := &v1alpha1.MemberLinkStatus{Carrier: "r", Reachable: true, Ahead: &v1alpha1.PlanVersion{Sequence: 1}, Confirmed: 3}
	Result{Older: true, Another: "b"}.Tell(status, "c")
	require.Equal(t, &v1alpha1.MemberLinkStatus{Carrier: "r", Reachable: true, Challenge: "c", Older: true, Another: "b"}, status)
	ahead := v1alpha1.PlanVersion{Epoch: 4, Sequence: 7}
	Result{Ahead: ahead, AheadGrant: 2, Confirmed: 4}.Tell(status, "d")
	require.Equal(t, &v1alpha1.MemberLinkStatus{
		Carrier: "r", Reachable: true, Challenge: "d", Confirmed: 4, Ahead: &ahead, AheadGrant: 2,
	}, status)
}
