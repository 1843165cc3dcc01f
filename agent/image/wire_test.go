package image_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestMayRun(t *testing.T) {
	img := apitest.Image("ns/a").WithStatus(v1alpha1.VMDiskImageStatus{LastAttempt: 4}).WithRevisions(
		v1alpha1.RevisionStatus{Revision: "r", Attempt: 4, AttemptEnded: 3, Outcome: v1alpha1.OutcomeFailed},
	).Obj()
	for name, tt := range map[string]struct {
		revision string
		attempt  int32
		want     bool
	}{
		"ended":                            {"r", 3, false},
		"begun":                            {"r", 4, true},
		"not begun":                        {"r", 5, true},
		"one of a forgotten revision":      {"q", 2, false},
		"one of a revision not stored yet": {"q", 5, true},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, image.MayRun(img, apitest.Slot(img, tt.revision, tt.attempt).Obj()))
		})
	}
}

func TestStoreRefusal(t *testing.T) {
	refused := v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeRefused, Message: strings.Repeat("no ", 1000)}
	now := metav1.NewTime(apitest.Epoch)
	for name, tt := range map[string]struct {
		revision v1alpha1.RevisionStatus
		want     bool
	}{
		"to begin":         {v1alpha1.RevisionStatus{Revision: "r"}, true},
		"begun meanwhile":  {v1alpha1.RevisionStatus{Revision: "r", Attempt: 1}, false},
		"ended meanwhile":  {v1alpha1.RevisionStatus{Revision: "r", Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeSucceeded}, false},
		"another revision": {v1alpha1.RevisionStatus{Revision: "q"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.Image("ns/a").WithRevisions(tt.revision).Obj()
			before := img.DeepCopy()
			got := image.StoreRefusal(img, apitest.Slot(img, "r", 1).Obj(), refused, ptr.To(unasked().Obj()), now)
			assert.Equal(t, tt.want, got)
			if !got {
				assert.Equal(t, before, img)
				return
			}
			e := img.Status.Revisions[0]
			assert.EqualValues(t, 1, e.AttemptEnded)
			assert.EqualValues(t, 1, img.Status.LastAttempt)
			assert.NotNil(t, e.NotBefore, "it is tried again")
			assert.LessOrEqual(t, len([]rune(e.Failure.Message)), 1024)
		})
	}
	img := apitest.Image("ns/a").WithRevisions(v1alpha1.RevisionStatus{Revision: "r"}).Obj()
	assert.True(t, image.StoreRefusal(img, apitest.Slot(img, "r", 1).Obj(), refused, nil, now), "by the default where no policy is known")
}
