package vm_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// olderRevision returns a revision that the golden image has besides the served one.
func olderRevision(attempt int32) v1alpha1.RevisionStatus {
	return v1alpha1.RevisionStatus{
		Revision: fmt.Sprintf("rev-%d", attempt), Attempt: attempt, AttemptEnded: attempt,
		Outcome: v1alpha1.OutcomeSucceeded, DataVolume: fmt.Sprintf("golden-%d", attempt),
	}
}

// newWorldWithLostStatus returns a world with a root disk whose machine has no status, which is also
// how a disk created by hand looks.
func newWorldWithLostStatus(t *testing.T) *world {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(2), cdiv1.Succeeded)
	w.VM.Status, w.Pinned = v1alpha1.VirtualMachineStatus{}, nil
	w.Image.Status.Revisions = []v1alpha1.RevisionStatus{olderRevision(1)}
	return w
}

// Whoever may write to a machine's namespace can create a blank DataVolume with the name of the
// root disk and an annotation that names any claim next to the image. The agent must not clone
// that claim after the DataVolume is deleted.
func TestForgedCloneAnnotationIsIgnored(t *testing.T) {
	running, failed, snapshot := olderRevision(1), olderRevision(1), olderRevision(1)
	running.AttemptEnded, running.DataVolume = 0, "golden-1"
	failed.Outcome = v1alpha1.OutcomeFailed
	snapshot.DataVolume, snapshot.VolumeSnapshot = "", "golden-1-s"
	for name, tt := range map[string]struct {
		source   string
		revision v1alpha1.RevisionStatus
		snapshot bool
		want     string
	}{
		"what the image serves":      {source: "%s/rev-2/2/golden-2", want: "golden-2"},
		"an older revision":          {source: "%s/rev-1/1/golden-1", want: "golden-1"},
		"an older snapshot":          {source: "%s/rev-1/1/golden-1-s", revision: snapshot, snapshot: true, want: "golden-1-s"},
		"no claim or snapshot":       {source: "%s/rev-1/1/", revision: snapshot},
		"another claim":              {source: "%s/rev-2/2/payroll"},
		"another claim and revision": {source: "%s/rev-9/9/payroll"},
		"another attempt":            {source: "%s/rev-2/3/golden-2"},
		"another image":              {source: "uid-of-other/rev-2/2/golden-2"},
		"a running import":           {source: "%s/rev-1/1/golden-1", revision: running},
		"a failed import":            {source: "%s/rev-1/1/golden-1", revision: failed},
		"a claim posing as snapshot": {source: "%s/rev-2/2/payroll", snapshot: true},
		"no annotation":              {source: ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldWithLostStatus(t)
			if tt.revision.Revision != "" {
				w.Image.Status.Revisions = []v1alpha1.RevisionStatus{tt.revision}
			}
			source := tt.source
			if source != "" && source[0] == '%' {
				source = fmt.Sprintf(source, w.Image.UID)
			}
			w.DataVolume.Annotations[v1alpha1.AnnotationClonedFrom] = source
			w.DataVolume.Spec.Source = &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}
			if tt.snapshot {
				w.DataVolume.Spec.Source = &cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: "ns", Name: "x"}}
			}
			w.reconcile()
			assert.True(t, w.hasCondition(v1alpha1.ConditionRootDiskReady), "the disk is used anyway")
			if tt.want == "" {
				require.Nil(t, w.VM.Status.Pinned)
				assert.False(t, w.hasCondition(v1alpha1.ConditionImageAcquired))
			} else {
				require.Equal(t, source, kubevirt.ClonedFromValue(*w.VM.Status.Pinned))
				require.NotNil(t, w.VM.Status.Pinned.AcquiredAt)
			}
			w.DataVolume = nil
			w.Image.Status.Revisions = nil
			var created *vm.Decision
			for range 3 {
				if d := w.reconcile(); len(d.CreateDisks) > 0 {
					created = &d
				}
			}
			require.NotNil(t, created)
			if tt.want == "" {
				assert.Equal(t, "golden-2", created.CreateDisks[0].Spec.Source.PVC.Name, "a new disk is cloned from what the image serves")
			}
		})
	}
}
