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

// olderRevision is a revision that golden has beside what it serves.
func olderRevision(attempt int32) v1alpha1.RevisionStatus {
	return v1alpha1.RevisionStatus{
		Revision: fmt.Sprintf("rev-%d", attempt), Attempt: attempt, AttemptEnded: attempt,
		Outcome: v1alpha1.OutcomeSucceeded, DataVolume: fmt.Sprintf("golden-%d", attempt),
	}
}

// newWorldWithLostStatus is a world whose machine has a disk and has lost its status, as a disk is
// that somebody has made by hand.
func newWorldWithLostStatus(t *testing.T) *world {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(2), cdiv1.Succeeded)
	w.VM.Status, w.Pinned = v1alpha1.VirtualMachineStatus{}, nil
	w.Image.Status.Revisions = []v1alpha1.RevisionStatus{olderRevision(1)}
	return w
}

// TestForgedCloneAnnotationIsIgnored: whoever writes to a machine's namespace can make a
// blank DataVolume of the root disk's name and have it say that it was cloned
// from any claim next to the image. The agent must not clone that once the
// DataVolume is deleted.
func TestForgedCloneAnnotationIsIgnored(t *testing.T) {
	running, failed, snapshot := olderRevision(1), olderRevision(1), olderRevision(1)
	running.AttemptEnded, running.DataVolume = 0, "golden-1"
	failed.Outcome = v1alpha1.OutcomeFailed
	snapshot.DataVolume, snapshot.VolumeSnapshot = "", "golden-1-s"
	for name, tt := range map[string]struct {
		says     string
		revision v1alpha1.RevisionStatus
		snapshot bool
		want     string
	}{
		"what the image serves":         {says: "%s/rev-2/2/golden-2", want: "golden-2"},
		"an older revision":             {says: "%s/rev-1/1/golden-1", want: "golden-1"},
		"an older snapshot":             {says: "%s/rev-1/1/golden-1-s", revision: snapshot, snapshot: true, want: "golden-1-s"},
		"nothing by name":               {says: "%s/rev-1/1/", revision: snapshot},
		"another claim":                 {says: "%s/rev-2/2/payroll"},
		"another claim and revision":    {says: "%s/rev-9/9/payroll"},
		"another attempt":               {says: "%s/rev-2/3/golden-2"},
		"another image":                 {says: "uid-of-other/rev-2/2/golden-2"},
		"an import that still runs":     {says: "%s/rev-1/1/golden-1", revision: running},
		"an import that failed":         {says: "%s/rev-1/1/golden-1", revision: failed},
		"a claim said to be a snapshot": {says: "%s/rev-2/2/payroll", snapshot: true},
		"nothing at all":                {says: ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldWithLostStatus(t)
			if tt.revision.Revision != "" {
				w.Image.Status.Revisions = []v1alpha1.RevisionStatus{tt.revision}
			}
			says := tt.says
			if says != "" && says[0] == '%' {
				says = fmt.Sprintf(says, w.Image.UID)
			}
			w.RootDisk.Annotations[v1alpha1.AnnotationClonedFrom] = says
			w.RootDisk.Spec.Source = &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}
			if tt.snapshot {
				w.RootDisk.Spec.Source = &cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: "ns", Name: "x"}}
			}
			w.reconcile()
			assert.True(t, w.hasCondition(v1alpha1.ConditionRootDiskReady), "the disk is used all the same")
			if tt.want == "" {
				require.Nil(t, w.VM.Status.Pinned)
				assert.False(t, w.hasCondition(v1alpha1.ConditionImageAcquired))
			} else {
				require.Equal(t, says, kubevirt.ClonedFromValue(*w.VM.Status.Pinned))
				require.NotNil(t, w.VM.Status.Pinned.AcquiredAt)
			}
			w.RootDisk = nil // and it is deleted
			w.Image.Status.Revisions = nil
			var made *vm.Decision
			for range 3 {
				if d := w.reconcile(); d.CreateRootDisk != nil {
					made = &d
				}
			}
			require.NotNil(t, made)
			if tt.want == "" {
				assert.Equal(t, "golden-2", made.CreateRootDisk.Spec.Source.PVC.Name, "a new disk is of what the image serves")
			}
		})
	}
}
