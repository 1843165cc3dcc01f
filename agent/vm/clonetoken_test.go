package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	extendedToken = "cdi.kubevirt.io/storage.extended.clone.token"
	// tokenLifetime is for how long CDI accepts the token that its webhook has made.
	tokenLifetime = 5*time.Minute + 10*time.Second
)

// takeUp has CDI extend the token of a clone.
func takeUp(dv *cdiv1.DataVolume) { dv.Annotations[extendedToken] = "token" }

// recordSeenFor notes for how long DataVolumes have been known, as the controller does.
func (w *world) recordSeenFor() {
	if w.firstSeen == nil {
		w.firstSeen = map[types.UID]time.Time{}
	}
	record := func(v *vm.DiskView) {
		if v.SeenFor = 0; v.DataVolume == nil {
			return
		}
		if _, known := w.firstSeen[v.DataVolume.UID]; !known {
			w.firstSeen[v.DataVolume.UID] = w.Now
		}
		v.SeenFor = w.Now.Sub(w.firstSeen[v.DataVolume.UID])
	}
	record(&w.DiskView)
	for name := range w.Disks {
		w.changeDisk(name, record)
	}
}

// newUntakenClonesWorld has a root disk and data disk tools, both from another namespace, that CDI does
// not take up for as long as their tokens live.
func newUntakenClonesWorld(t require.TestingT) *world {
	w := newDisksWorld(t)
	w.withoutCDI = true
	w.VM.Spec.VMDiskImageRef = v1alpha1.ImageReference{Namespace: "farm", Name: "golden"}
	img := apitest.Image("farm/golden").WithUID("uid-of-golden").WithStatus(goldenImage(1).Status).Obj()
	w.withPin(img, true).DataVolume = nil
	w.reconcile()
	w.completeDisk("scratch")
	w.reconcile()
	require.NotNil(t, w.DataVolume)
	require.NotNil(t, w.Disks["tools"].DataVolume)
	w.Now = w.Now.Add(tokenLifetime)
	return w
}

// forClones changes both clones of newUntakenClonesWorld.
func (w *world) forClones(change func(disk string, v *vm.DiskView)) {
	change("", &w.DiskView)
	w.changeDisk("tools", func(v *vm.DiskView) { change("tools", v) })
}

// CDI clones from another namespace only what it has taken up within five minutes.
func TestCloneThatCDITakesUpTooLateIsReplaced(t *testing.T) {
	each := func(change func(v *vm.DiskView)) func(*world) {
		return func(w *world) { w.forClones(func(_ string, v *vm.DiskView) { change(v) }) }
	}
	for name, tt := range map[string]struct {
		change func(*world)
		want   bool
	}{
		"it was away": {func(*world) {}, true},
		"it found no claim properties, which a person has set": {each(func(v *vm.DiskView) {
			v.DataVolume.Status.Phase = cdiv1.Pending
			v.DataVolume.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionUnknown, Reason: "NotFound", Message: "No PVC found"}}
		}), true},
		"it finds no claim properties": {each(func(v *vm.DiskView) {
			v.DataVolume.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionFalse, Reason: "ErrClaimNotValid", Message: "no accessMode specified in StorageProfile x"}}
		}), false},
		"the agent knows that no claim can be made": {each(func(v *vm.DiskView) { v.ClaimProblem = "set claimPropertySets" }), false},
		"it still may":     {func(w *world) { w.Now = w.Now.Add(-time.Second) }, false},
		"it has begun":     {each(func(v *vm.DiskView) { takeUp(v.DataVolume) }), false},
		"there is a claim": {each(func(v *vm.DiskView) { v.Claim = rootDiskClaim(v.DataVolume, corev1.ClaimPending) }), false},
		"there is a bound claim": {each(func(v *vm.DiskView) {
			v.DataVolume.Status.Phase = cdiv1.Pending
			v.Claim = rootDiskClaim(v.DataVolume, corev1.ClaimBound)
		}), false},
		"a claim that no cache has":            {func(w *world) { w.unlabelled = map[string]*corev1.PersistentVolumeClaim{"": {}, "tools": {}} }, false},
		"a claim is restored":                  {each(func(v *vm.DiskView) { v.DataVolume.Annotations[cdiv1.AnnPrePopulated] = "vm-root" }), false},
		"a volume is restored":                 {each(func(v *vm.DiskView) { v.DataVolume.Annotations[cdiv1.AnnCheckStaticVolume] = "" }), false},
		"they are of the machine's namespace":  {each(func(v *vm.DiskView) { v.DataVolume.Spec.Source.PVC.Namespace = "ns" }), false},
		"their source is gone":                 {func(w *world) { w.sourceExists = false }, false},
		"they were complete":                   {func(w *world) { w.VM.Status.RootDisk.Ready, w.diskStatus("tools").Volume.Ready = true, true }, false},
		"they are complete":                    {each(func(v *vm.DiskView) { v.DataVolume.Status.Phase = cdiv1.Succeeded }), false},
		"this agent found them a moment ago":   {func(w *world) { w.firstSeen = nil }, false},
		"the agent's clock is ahead by a year": {func(w *world) { w.Now, w.firstSeen = w.Now.AddDate(1, 0, 0), nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newUntakenClonesWorld(t)
			tt.change(w)
			d := w.reconcile()
			if !tt.want {
				assert.Empty(t, d.DeleteDisks)
				return
			}
			require.Len(t, d.DeleteDisks, 2)
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "CDI has not begun to clone DataVolume vm-root, and no longer may: it is replaced")
			assert.Len(t, w.reconcile().CreateDisks, 2)
			w.reconcile() // by the event of their creation
			w.Now = w.Now.Add(tokenLifetime - time.Second)
			d = w.reconcile()
			assert.Empty(t, d.DeleteDisks, "each has its time")
			assert.LessOrEqual(t, d.RequeueAfter, time.Second, "no event tells that it has passed")
		})
	}
}

// TestLateCloneIsReadLive: the cache may lag behind CDI.
func TestLateCloneIsReadLive(t *testing.T) {
	w := newUntakenClonesWorld(t)
	w.recordSeenFor()
	v := w.View
	require.True(t, w.decideChecked(v).NeedsLive)
	v.Live, v.SourceExists = true, true
	d := w.decideChecked(v)
	require.NotEmpty(t, d.DeleteDisks)
	assert.Equal(t, vm.DeleteTarget{Name: "vm-root", UID: w.DataVolume.UID, ResourceVersion: "7"}, d.DeleteDisks[0])
	v.DataVolume = v.DataVolume.DeepCopy()
	takeUp(v.DataVolume)
	for _, target := range w.decideChecked(v).DeleteDisks {
		assert.NotEmpty(t, target.Disk, "CDI has begun")
	}
}

// TestLateClonesInAnyOrder has CDI go and come back, take up what it still may, make claims and fill
// them, while the agent decides at any time. No clone that CDI has begun is replaced, none is before
// CDI had its time, and once CDI stays, all are complete.
func TestLateClonesInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newUntakenClonesWorld(t)
		cdiRuns := false
		createdAt := map[types.UID]time.Time{}
		stepCDI := func() {
			w.forClones(func(_ string, v *vm.DiskView) {
				switch dv := v.DataVolume; {
				case !cdiRuns || dv == nil:
				case dv.Annotations[extendedToken] == "":
					if w.Now.Sub(dv.CreationTimestamp.Time) < tokenLifetime {
						takeUp(dv)
					}
				case v.Claim == nil:
					v.Claim = unfilledClaim(dv)
				default:
					v.Claim.Status.Phase, v.Claim.Spec.VolumeName = corev1.ClaimBound, "pv"
					dv.Status.Phase = cdiv1.Succeeded
				}
			})
		}
		stepAgent := func() {
			known := map[types.UID]vm.DiskView{}
			w.forClones(func(_ string, v *vm.DiskView) {
				if v.DataVolume != nil {
					known[v.DataVolume.UID] = *v
					createdAt[v.DataVolume.UID] = v.DataVolume.CreationTimestamp.Time
				}
			})
			for _, target := range w.reconcile().DeleteDisks {
				deleted := known[target.UID]
				require.Empty(t, deleted.DataVolume.Annotations[extendedToken], "CDI has begun to clone it")
				require.Nil(t, deleted.Claim)
				require.GreaterOrEqual(t, w.Now.Sub(createdAt[target.UID]), tokenLifetime)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"CDI goes or comes back": func(*rapid.T) { cdiRuns = !cdiRuns },
			"CDI works":              func(*rapid.T) { stepCDI() },
			"the agent restarts":     func(*rapid.T) { w.firstSeen = nil },
			"the agent decides":      func(*rapid.T) { stepAgent() },
			"time passes": func(t *rapid.T) {
				w.Now = w.Now.Add(time.Duration(rapid.SampledFrom([]int{1, 60, 309, 310}).Draw(t, "seconds")) * time.Second)
			},
		})
		cdiRuns = true
		for range 8 {
			stepAgent()
			stepCDI()
			if w.DataVolume != nil && w.DataVolume.Annotations[extendedToken] == "" {
				w.Now = w.Now.Add(tokenLifetime)
			}
		}
		require.Equal(t, cdiv1.Succeeded, w.DataVolume.Status.Phase)
		w.reconcile()
		require.True(t, w.hasCondition(v1alpha1.ConditionRootDiskReady))
	})
}
