package image_test

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestImportComplete(t *testing.T) {
	dv := func() *apitest.DataVolumeBuilder { return apitest.DataVolume("ns/a").Phase(cdiv1.Succeeded) }
	claim := func() *apitest.ClaimBuilder { return apitest.PersistentVolumeClaim("ns/a").Bound("1Gi") }
	for name, tt := range map[string]struct {
		dv    *apitest.DataVolumeBuilder
		claim *apitest.ClaimBuilder
		want  bool
	}{
		"no objects":                                  {nil, nil, false},
		"succeeded and bound":                         {dv(), claim(), true},
		"succeeded, not bound yet":                    {dv(), claim().Phase(corev1.ClaimPending), false},
		"succeeded, its claim lost":                   {dv(), claim().Phase(corev1.ClaimLost), false},
		"succeeded, its claim being deleted":          {dv(), claim().Deleted(apitest.Epoch), false},
		"succeeded and being deleted":                 {dv().Deleted(apitest.Epoch), claim(), false},
		"succeeded without a claim":                   {dv(), nil, false},
		"still importing":                             {dv().Phase(cdiv1.ImportInProgress), claim(), false},
		"garbage-collected, populated":                {nil, claim().ImporterPhase(corev1.PodSucceeded), true},
		"garbage-collected, populated, being deleted": {nil, claim().ImporterPhase(corev1.PodSucceeded).Deleted(apitest.Epoch), false},
		"its DataVolume deleted while it ran":         {nil, claim().ImporterPhase(corev1.PodRunning), false},
		"a claim that is not populated":               {nil, claim(), false},
	} {
		t.Run(name, func(t *testing.T) {
			o := &image.AttemptObjects{}
			if tt.dv != nil {
				o.DataVolume = tt.dv.Obj()
			}
			if tt.claim != nil {
				o.Claim = tt.claim.Obj()
			}
			assert.Equal(t, tt.want, o.ImportComplete())
		})
	}
	assert.False(t, (*image.AttemptObjects)(nil).ImportComplete())
	assert.False(t, (*image.AttemptObjects)(nil).CanDownload())
}

func TestCanDownload(t *testing.T) {
	for name, tt := range map[string]struct {
		objects image.AttemptObjects
		want    bool
	}{
		"nothing":       {image.AttemptObjects{}, false},
		"a DataVolume":  {image.AttemptObjects{DataVolume: apitest.DataVolume("ns/a").Obj()}, true},
		"a claim":       {image.AttemptObjects{Claim: apitest.PersistentVolumeClaim("ns/a").Obj()}, true},
		"scratch space": {image.AttemptObjects{CDIClaims: []corev1.PersistentVolumeClaim{*apitest.PersistentVolumeClaim("ns/s").Obj()}}, true},
		"an importer":   {image.AttemptObjects{Pods: []corev1.Pod{*apitest.Pod("ns/i").Obj()}}, true},
		"a snapshot":    {image.AttemptObjects{Snapshots: []snapshotv1.VolumeSnapshot{*apitest.VolumeSnapshot("ns/s").Obj()}}, false},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tt.want, tt.objects.CanDownload()) })
	}
}

func TestGroupByAttempt(t *testing.T) {
	unlabelled := apitest.PersistentVolumeClaim("ns/x").Obj()
	wrong := apitest.PersistentVolumeClaim("ns/y").ForAttempt("u", "r", 1).Obj()
	wrong.Labels[v1alpha1.LabelAttempt] = "99999999999"
	negative := apitest.PersistentVolumeClaim("ns/z").ForAttempt("u", "r", -1).Obj()

	got := image.GroupByAttempt(image.ObjectLists{
		DataVolumes: []cdiv1.DataVolume{*apitest.DataVolume("ns/a-1").ForAttempt("u", "r", 1).Obj(), *apitest.DataVolume("ns/a-3").ForAttempt("u", "r", 3).Obj()},
		Claims: []corev1.PersistentVolumeClaim{
			*apitest.PersistentVolumeClaim("ns/prime-0").ForAttempt("u", "r", 1).OwnedBy("PersistentVolumeClaim", "a-1").Obj(),
			*apitest.PersistentVolumeClaim("ns/a-1").ForAttempt("u", "r", 1).OwnedBy("DataVolume", "a-1").Obj(),
			*apitest.PersistentVolumeClaim("ns/a-1-scratch").ForAttempt("u", "r", 1).OwnedBy("Pod", "importer-a-1").Obj(),
			*apitest.PersistentVolumeClaim("ns/a-2").ForAttempt("u", "r", 2).Obj(), // its DataVolume was garbage-collected
			*unlabelled, *wrong, *negative,
		},
		Pods:      []corev1.Pod{*apitest.Pod("ns/importer-a-1").ForAttempt("u", "r", 1).Obj()},
		Snapshots: []snapshotv1.VolumeSnapshot{*apitest.VolumeSnapshot("ns/a-2-s").ForAttempt("u", "r", 2).Obj()},
	})

	require.ElementsMatch(t, []int32{0, 1, 2, 3}, sortedKeys(got))
	assert.Equal(t, "a-1", got[1].DataVolume.Name)
	assert.Equal(t, "a-1", got[1].Claim.Name)
	assert.Len(t, got[1].CDIClaims, 2, "CDI's own claims")
	assert.Len(t, got[1].Pods, 1)
	assert.Nil(t, got[2].DataVolume)
	assert.Equal(t, "a-2", got[2].Claim.Name)
	assert.Len(t, got[2].Snapshots, 1)
	assert.Nil(t, got[3].Claim)
	assert.NotNil(t, got[0].Claim, "objects without a number belong to no attempt")
}

func sortedKeys[V any](m map[int32]V) []int32 {
	list := make([]int32, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	return list
}
