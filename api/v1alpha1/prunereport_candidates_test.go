package v1alpha1_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestCandidatesLeft(t *testing.T) {
	prune := func(report, digest string, pruned int32, bytes int64) v1alpha1.ImagePrune {
		return v1alpha1.ImagePrune{
			Spec:   v1alpha1.ImagePruneSpec{ReportRef: v1alpha1.PruneReportRef{Name: report, Digest: digest}},
			Status: v1alpha1.ImagePruneStatus{Targets: v1alpha1.TargetCounts{Total: 100, Pruned: pruned, Skipped: 1}, PrunedBytes: bytes},
		}
	}
	for name, test := range map[string]struct {
		prunes []v1alpha1.ImagePrune
		want   v1alpha1.PruneTotal
	}{
		"nothing was pruned":       {nil, v1alpha1.PruneTotal{Count: 112, Bytes: 2000}},
		"all of it":                {[]v1alpha1.ImagePrune{prune("spring", "5d1f", 112, 2000)}, v1alpha1.PruneTotal{}},
		"parts, by two":            {[]v1alpha1.ImagePrune{prune("spring", "5d1f", 10, 100), prune("spring", "5d1f", 2, 300)}, v1alpha1.PruneTotal{Count: 100, Bytes: 1600}},
		"the same, by two":         {[]v1alpha1.ImagePrune{prune("spring", "5d1f", 112, 2000), prune("spring", "5d1f", 1, 1)}, v1alpha1.PruneTotal{}},
		"of another report":        {[]v1alpha1.ImagePrune{prune("winter", "5d1f", 1, 1)}, v1alpha1.PruneTotal{Count: 112, Bytes: 2000}},
		"of a report of that name": {[]v1alpha1.ImagePrune{prune("spring", "0c9e", 1, 1)}, v1alpha1.PruneTotal{Count: 112, Bytes: 2000}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &v1alpha1.PruneReport{}
			r.Name, r.Status.Digest, r.Status.Candidates = "spring", "5d1f", v1alpha1.PruneTotal{Count: 112, Bytes: 2000}
			assert.Equal(t, test.want, r.CandidatesLeft(test.prunes))
		})
	}
}
