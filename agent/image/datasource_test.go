package image_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// othersObjects are DataSources and what they point at, by name. All are in namespace os.
type othersObjects struct {
	dataSources map[string]*cdiv1.DataSource
	claims      map[string]*corev1.PersistentVolumeClaim
	snapshots   map[string]*snapshotv1.VolumeSnapshot
	reads       []types.NamespacedName
}

func (o *othersObjects) reader() image.SourceReader {
	return image.SourceReader{
		DataSource: func(key types.NamespacedName) (*cdiv1.DataSource, error) {
			o.reads = append(o.reads, key)
			return o.dataSources[key.Name], nil
		},
		Claim: func(key types.NamespacedName) (*corev1.PersistentVolumeClaim, error) {
			o.reads = append(o.reads, key)
			return o.claims[key.Name], nil
		},
		Snapshot: func(key types.NamespacedName) (*snapshotv1.VolumeSnapshot, error) {
			o.reads = append(o.reads, key)
			return o.snapshots[key.Name], nil
		},
	}
}

// newDataSource returns a DataSource that CDI found ready.
func newDataSource(name string, source cdiv1.DataSourceSource) *cdiv1.DataSource {
	d := &cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: "os", Name: name, UID: types.UID("uid-" + name)}, Spec: cdiv1.DataSourceSpec{Source: source}}
	d.Status.Conditions = []cdiv1.DataSourceCondition{{Type: cdiv1.DataSourceReady, ConditionState: cdiv1.ConditionState{Status: corev1.ConditionTrue}}}
	return d
}

func toClaim(namespace, name string) cdiv1.DataSourceSource {
	return cdiv1.DataSourceSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: namespace, Name: name}}
}

func toSnapshot(namespace, name string) cdiv1.DataSourceSource {
	return cdiv1.DataSourceSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: namespace, Name: name}}
}

func toDataSource(namespace, name string) cdiv1.DataSourceSource {
	return cdiv1.DataSourceSource{DataSource: &cdiv1.DataSourceRefSourceDataSource{Namespace: namespace, Name: name}}
}

func othersClaim(size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "os", Name: "fedora-1", UID: "uid-of-claim"},
		Status: corev1.PersistentVolumeClaimStatus{
			Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
		},
	}
}

func othersSnapshot(size string) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "os", Name: "fedora-2", UID: "uid-of-snapshot"},
		Status:     &snapshotv1.VolumeSnapshotStatus{ReadyToUse: ptr.To(true), BoundVolumeSnapshotContentName: ptr.To("c"), RestoreSize: ptr.To(resource.MustParse(size))},
	}
}

func adoptedImage() *v1alpha1.VMDiskImage {
	img := apitest.Image("ns/a").WithSource(v1alpha1.SourceDataSource, "").Obj()
	img.Spec.DataSource = &v1alpha1.DataSourceReference{Namespace: "os", Name: "fedora"}
	return img
}

// readyObjects has DataSource fedora, which points at a claim of 1Gi.
func readyObjects() *othersObjects {
	return &othersObjects{
		dataSources: map[string]*cdiv1.DataSource{"fedora": newDataSource("fedora", toClaim("", "fedora-1"))},
		claims:      map[string]*corev1.PersistentVolumeClaim{"fedora-1": othersClaim("1Gi")},
		snapshots:   map[string]*snapshotv1.VolumeSnapshot{"fedora-2": othersSnapshot("3Gi")},
	}
}

func TestFollowDataSource(t *testing.T) {
	hugeName := strings.Repeat("x", 70_000) + "\x1b[31m"
	const unlabeled = ""
	for name, tt := range map[string]struct {
		change      func(o *othersObjects, img *v1alpha1.VMDiskImage)
		wantReason  v1alpha1.Reason // empty: it serves
		wantMessage string
		wantServing v1alpha1.Serving
	}{
		"a claim": {
			func(*othersObjects, *v1alpha1.VMDiskImage) {}, "", unlabeled,
			v1alpha1.Serving{PersistentVolumeClaim: "fedora-1", DiskSize: ptr.To(resource.MustParse("1Gi")), RestoreSize: ptr.To(resource.MustParse("1Gi"))},
		},
		"a claim larger than the image": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) { o.claims["fedora-1"] = othersClaim("5Gi") }, "", unlabeled,
			v1alpha1.Serving{PersistentVolumeClaim: "fedora-1", DiskSize: ptr.To(resource.MustParse("5Gi")), RestoreSize: ptr.To(resource.MustParse("5Gi"))},
		},
		"a claim smaller than the image": {
			func(_ *othersObjects, img *v1alpha1.VMDiskImage) { img.Spec.DiskSize = resource.MustParse("9Gi") }, "", unlabeled,
			v1alpha1.Serving{PersistentVolumeClaim: "fedora-1", DiskSize: ptr.To(resource.MustParse("9Gi")), RestoreSize: ptr.To(resource.MustParse("1Gi"))},
		},
		"a snapshot": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", toSnapshot("os", "fedora-2"))
			}, "", unlabeled,
			v1alpha1.Serving{VolumeSnapshot: "fedora-2", DiskSize: ptr.To(resource.MustParse("3Gi")), RestoreSize: ptr.To(resource.MustParse("3Gi"))},
		},
		"by one more DataSource": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora-amd64"], o.dataSources["fedora"] = o.dataSources["fedora"], newDataSource("fedora", toDataSource("", "fedora-amd64"))
			}, "", unlabeled,
			v1alpha1.Serving{PersistentVolumeClaim: "fedora-1", DiskSize: ptr.To(resource.MustParse("1Gi")), RestoreSize: ptr.To(resource.MustParse("1Gi"))},
		},
		"of the image's own architecture": {
			func(o *othersObjects, img *v1alpha1.VMDiskImage) {
				img.Spec.Architecture = v1alpha1.ArchitectureARM64
				o.dataSources["fedora"].Labels = map[string]string{"template.kubevirt.io/architecture": "arm64"}
			}, "", unlabeled,
			v1alpha1.Serving{Architecture: v1alpha1.ArchitectureARM64, PersistentVolumeClaim: "fedora-1", DiskSize: ptr.To(resource.MustParse("1Gi")), RestoreSize: ptr.To(resource.MustParse("1Gi"))},
		},
		"with an architecture, where the image says none": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"].Labels = map[string]string{"template.kubevirt.io/architecture": "s390x"}
			}, "", unlabeled,
			v1alpha1.Serving{Architecture: v1alpha1.ArchitectureS390X, PersistentVolumeClaim: "fedora-1", DiskSize: ptr.To(resource.MustParse("1Gi")), RestoreSize: ptr.To(resource.MustParse("1Gi"))},
		},
		"with an architecture that no machine can have": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"].Labels = map[string]string{"template.kubevirt.io/architecture": hugeName}
			}, "", unlabeled,
			v1alpha1.Serving{PersistentVolumeClaim: "fedora-1", DiskSize: ptr.To(resource.MustParse("1Gi")), RestoreSize: ptr.To(resource.MustParse("1Gi"))},
		},
		"another architecture of the DataSource": {
			func(o *othersObjects, img *v1alpha1.VMDiskImage) {
				img.Spec.Architecture = v1alpha1.ArchitectureARM64
				o.dataSources["fedora"].Labels = map[string]string{"template.kubevirt.io/architecture": "amd64"}
			}, v1alpha1.ReasonArchitectureMismatch, "spec.architecture is arm64, and label template.kubevirt.io/architecture of what DataSource os/fedora points at is amd64", v1alpha1.Serving{},
		},
		"another architecture of the claim": {
			func(o *othersObjects, img *v1alpha1.VMDiskImage) {
				img.Spec.Architecture = v1alpha1.ArchitectureARM64
				o.claims["fedora-1"].Labels = map[string]string{"template.kubevirt.io/architecture": "amd64"}
			}, v1alpha1.ReasonArchitectureMismatch, "is amd64", v1alpha1.Serving{},
		},
		"a namespace that is not allowed": {
			func(_ *othersObjects, img *v1alpha1.VMDiskImage) { img.Spec.DataSource.Namespace = "payroll" },
			v1alpha1.ReasonDataSourceForbidden, "clones nothing from namespace payroll, which DataSource payroll/fedora is in", v1alpha1.Serving{},
		},
		"the image's own namespace, which is not allowed": {
			func(_ *othersObjects, img *v1alpha1.VMDiskImage) { img.Spec.DataSource.Namespace = "" },
			v1alpha1.ReasonDataSourceForbidden, "ns/fedora", v1alpha1.Serving{},
		},
		"missing": {
			func(_ *othersObjects, img *v1alpha1.VMDiskImage) { img.Spec.DataSource.Name = "none" },
			v1alpha1.ReasonDataSourceMissing, "DataSource os/none does not exist", v1alpha1.Serving{},
		},
		"a missing one behind it": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", toDataSource("", "none"))
			}, v1alpha1.ReasonDataSourceMissing, "DataSource os/none, which DataSource os/fedora points at, does not exist", v1alpha1.Serving{},
		},
		"itself": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", toDataSource("os", "fedora"))
			}, v1alpha1.ReasonDataSourceInvalid, "points at itself", v1alpha1.Serving{},
		},
		"each other": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", toDataSource("", "b"))
				o.dataSources["b"] = newDataSource("b", toDataSource("", "fedora"))
			}, v1alpha1.ReasonDataSourceInvalid, "CDI follows only one", v1alpha1.Serving{},
		},
		"a chain": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["b"] = newDataSource("b", toDataSource("", "c"))
				o.dataSources["c"], o.dataSources["fedora"] = o.dataSources["fedora"], newDataSource("fedora", toDataSource("", "b"))
			}, v1alpha1.ReasonDataSourceInvalid, "points at another, os/c", v1alpha1.Serving{},
		},
		"nothing": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", cdiv1.DataSourceSource{})
			}, v1alpha1.ReasonDataSourceInvalid, "points at nothing", v1alpha1.Serving{},
		},
		"a claim in another namespace": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", toClaim("payroll", "fedora-1"))
			}, v1alpha1.ReasonDataSourceInvalid, "points at namespace payroll", v1alpha1.Serving{},
		},
		"a snapshot in another namespace": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", toSnapshot("payroll", "fedora-2"))
			}, v1alpha1.ReasonDataSourceInvalid, "points at namespace payroll", v1alpha1.Serving{},
		},
		"a DataSource in another namespace": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", toDataSource("payroll", "x"))
			}, v1alpha1.ReasonDataSourceInvalid, "points at namespace payroll", v1alpha1.Serving{},
		},
		"a huge name": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", toClaim("", hugeName))
			}, v1alpha1.ReasonDataSourceNotReady, "which does not exist", v1alpha1.Serving{},
		},
		"a huge namespace": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", toClaim(hugeName, "a"))
			}, v1alpha1.ReasonDataSourceInvalid, "points at namespace ", v1alpha1.Serving{},
		},
		"what CDI has not processed": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) { o.dataSources["fedora"].Status.Conditions = nil },
			v1alpha1.ReasonDataSourceNotReady, "has no condition Ready yet", v1alpha1.Serving{},
		},
		"not ready, in CDI's words": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"].Status.Conditions[0].ConditionState = cdiv1.ConditionState{Status: corev1.ConditionFalse, Message: "Import DataVolume phase\x1b ImportInProgress"}
			}, v1alpha1.ReasonDataSourceNotReady, "is not ready: Import DataVolume phase", v1alpha1.Serving{},
		},
		"ready by its former claim": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"].Status.Source = toClaim("os", "fedora-0")
			}, v1alpha1.ReasonDataSourceNotReady, "points at another source than before", v1alpha1.Serving{},
		},
		"being deleted": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"].DeletionTimestamp = ptr.To(metav1.Now())
			}, v1alpha1.ReasonDataSourceNotReady, "is being deleted", v1alpha1.Serving{},
		},
		"a claim that is gone": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) { delete(o.claims, "fedora-1") },
			v1alpha1.ReasonDataSourceNotReady, "PersistentVolumeClaim fedora-1, which does not exist", v1alpha1.Serving{},
		},
		"a claim that is being filled": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.claims["fedora-1"].Annotations = map[string]string{"cdi.kubevirt.io/storage.pod.phase": "Running"}
			}, v1alpha1.ReasonDataSourceNotReady, "which is not bound and filled", v1alpha1.Serving{},
		},
		"a claim that is being deleted": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.claims["fedora-1"].DeletionTimestamp = ptr.To(metav1.Now())
			}, v1alpha1.ReasonDataSourceNotReady, "which is not bound and filled", v1alpha1.Serving{},
		},
		"a snapshot that is not ready": {
			func(o *othersObjects, _ *v1alpha1.VMDiskImage) {
				o.dataSources["fedora"] = newDataSource("fedora", toSnapshot("", "fedora-2"))
				o.snapshots["fedora-2"].Status.ReadyToUse = nil
			}, v1alpha1.ReasonDataSourceNotReady, "VolumeSnapshot fedora-2, which is not ready", v1alpha1.Serving{},
		},
		"what the image has downloaded itself": {
			func(o *othersObjects, img *v1alpha1.VMDiskImage) {
				o.claims["fedora-1"].Labels = map[string]string{v1alpha1.LabelImageUID: string(img.UID)}
			}, v1alpha1.ReasonDataSourceInvalid, "points at what this image has downloaded itself", v1alpha1.Serving{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects, img := readyObjects(), adoptedImage()
			tt.change(objects, img)
			got, err := image.FollowDataSource(img, []string{"os"}, objects.reader())
			require.NoError(t, err)
			for _, key := range objects.reads {
				assert.Equal(t, "os", key.Namespace, "nothing is read elsewhere")
			}
			assert.LessOrEqual(t, len(objects.reads), 4)
			if tt.wantReason == "" {
				require.Nil(t, got.Blocker)
				tt.wantServing.Namespace, tt.wantServing.Revision = "os", img.Spec.Revision()
				assert.JSONEq(t, asJSON(t, tt.wantServing), asJSON(t, got.Serving))
				return
			}
			require.Nil(t, got.Serving)
			require.NotNil(t, got.Blocker)
			assert.Equal(t, tt.wantReason, got.Blocker.Reason)
			assert.Contains(t, got.Blocker.Message, tt.wantMessage)
			assert.Less(t, len(got.Blocker.Message), 2048)
			assert.NotContains(t, got.Blocker.Message, "\x1b")
		})
	}
	_, err := image.FollowDataSource(adoptedImage(), []string{"os"}, image.SourceReader{
		DataSource: func(types.NamespacedName) (*cdiv1.DataSource, error) { return nil, errors.New("timeout") },
	})
	require.Error(t, err, "a failed read is no missing DataSource")
}

// decideOnDataSource decides as often as the status changes, and returns the last decision.
func decideOnDataSource(t require.TestingT, img *v1alpha1.VMDiskImage, change func(*image.View)) image.Decision {
	var d image.Decision
	for range 6 {
		v := image.View{Now: apitest.Epoch.Add(time.Hour), Image: img}
		change(&v)
		if d = decideChecked(t, v); d.NeedsLiveRead {
			v.Live = true
			d = decideChecked(t, v)
		}
		if d.AddFinalizer {
			img.Finalizers = append(img.Finalizers, v1alpha1.FinalizerImage)
		}
		img.Status = d.Status
	}
	return d
}

func TestImageOfDataSource(t *testing.T) {
	objects, img := readyObjects(), adoptedImage()
	follow := func(v *image.View) {
		followed, err := image.FollowDataSource(img, []string{"os"}, objects.reader())
		require.NoError(t, err)
		v.DataSource = followed
	}
	d := decideOnDataSource(t, img, follow)
	assert.Equal(t, v1alpha1.PhaseSucceeded, d.Status.Phase, "without a policy, a slot or a queue")
	assert.Contains(t, d.Status.Message, "PersistentVolumeClaim os/fedora-1, which DataSource os/fedora points at")
	assert.Equal(t, "os", d.Status.Serving.Namespace)
	assert.Equal(t, ledger.NotQueued, image.QueueStateOf(img))
	assert.False(t, d.ProbeSource)
	assert.Nil(t, d.CreateSnapshot)
	assert.Zero(t, d.Status.BytesTotal)
	assert.Zero(t, d.Status.LastAttempt)
	assert.NotZero(t, d.RequeueAfter, "claims of others are not watched")

	objects.dataSources["fedora"] = newDataSource("fedora", toSnapshot("", "fedora-2"))
	d = decideOnDataSource(t, img, follow)
	assert.Equal(t, "fedora-2", d.Status.Serving.VolumeSnapshot, "it follows")
	assert.Empty(t, d.Status.Serving.PersistentVolumeClaim)

	delete(objects.dataSources, "fedora")
	d = decideOnDataSource(t, img, follow)
	assert.Equal(t, v1alpha1.PhaseSyncing, d.Status.Phase, "never Queued")
	assert.Equal(t, v1alpha1.ReasonDataSourceMissing, d.Status.Reason)
	assert.Nil(t, d.Status.Serving)
	assert.Equal(t, ledger.NotQueued, image.QueueStateOf(img))
	stalled := slices.IndexFunc(d.Status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionStalled })
	assert.Equal(t, metav1.ConditionTrue, d.Status.Conditions[stalled].Status)

	*objects = *readyObjects()
	decideOnDataSource(t, img, follow)
	img.DeletionTimestamp = ptr.To(metav1.NewTime(apitest.Epoch))
	d = decideOnDataSource(t, img, follow)
	assert.True(t, d.RemoveFinalizer, "nothing is to be deleted before")
	assert.Empty(t, d.Delete)
}

// A source that is changed to another is served until the other is ready, as long as it exists.
func TestFormerDataSourceServesOn(t *testing.T) {
	objects, img := readyObjects(), adoptedImage()
	decideOnDataSource(t, img, func(v *image.View) {
		v.DataSource, _ = image.FollowDataSource(img, []string{"os"}, objects.reader())
	})
	require.NotNil(t, img.Status.Serving)
	img.Spec = apitest.Image("ns/a").Obj().Spec
	d := decideOnDataSource(t, img, func(v *image.View) { v.FormerSourceExists = true })
	assert.Equal(t, "fedora-1", d.Status.Serving.PersistentVolumeClaim)
	assert.Equal(t, v1alpha1.PhaseQueued, d.Status.Phase)
	d = decideOnDataSource(t, img, func(*image.View) {})
	assert.Nil(t, d.Status.Serving)
}

// Whatever others do, no Decision acts on an object of theirs.
func TestNoDecisionTouchesOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		objects, img := readyObjects(), adoptedImage()
		own := apitest.DataVolume("ns/own").Obj()
		own.Labels = image.AttemptLabels(image.KeyOf(img), "earlier", 1)
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"claim", "snapshot", "chain", "nothing", "gone", "claim gone", "other source", "delete", "expire", "prune"}).Draw(t, "step") {
			case "claim":
				objects.dataSources["fedora"] = newDataSource("fedora", toClaim("os", "fedora-1"))
			case "snapshot":
				objects.dataSources["fedora"] = newDataSource("fedora", toSnapshot("os", "fedora-2"))
			case "chain":
				objects.dataSources["fedora"] = newDataSource("fedora", toDataSource("", "b"))
				objects.dataSources["b"] = newDataSource("b", toClaim("", "fedora-1"))
			case "nothing":
				objects.dataSources["fedora"] = newDataSource("fedora", cdiv1.DataSourceSource{})
			case "gone":
				delete(objects.dataSources, "fedora")
			case "claim gone":
				delete(objects.claims, "fedora-1")
			case "other source":
				img.Spec.DiskSize = resource.MustParse(rapid.SampledFrom([]string{"1Gi", "2Gi", "3Gi"}).Draw(t, "size"))
			case "delete":
				img.DeletionTimestamp = ptr.To(metav1.NewTime(apitest.Epoch))
			case "expire":
				img.Spec.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Minute}
			case "prune":
				img.Status.LastAttempt = 1
			}
			d := decideOnDataSource(t, img, func(v *image.View) {
				followed, err := image.FollowDataSource(img, []string{"os"}, objects.reader())
				require.NoError(t, err)
				v.DataSource = followed
				v.ObjectsByAttempt = image.GroupByAttempt(image.ObjectLists{DataVolumes: []cdiv1.DataVolume{*own}})
			})
			for _, target := range d.Delete {
				require.Equal(t, own.UID, target.UID, "only what carries the image's UID")
			}
			require.Nil(t, d.CreateSnapshot)
			require.Empty(t, d.EndedAttempts)
			require.NotEqual(t, v1alpha1.PhaseQueued, d.Status.Phase)
			require.NotEqual(t, v1alpha1.PhaseFailed, d.Status.Phase)
			require.Equal(t, ledger.NotQueued, image.QueueStateOf(img))
		}
	})
}
