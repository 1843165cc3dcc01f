//go:build linux

package faults

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// TestNameThatIsTaken: who may create DataVolumes can guess the name of the next
// attempt's. That must not hold its slot for ever, nor touch what is theirs.
func TestNameThatIsTaken(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "1", "retryLimit", "1", "retryBackoffDuration", "15s"))
	ns := home(t)
	img := place.Image(ns, "image", "/servererror/a")
	place.Create(t, img)
	waits := place.Eventually(t, img, scene.Because(v1alpha1.ReasonBackingOff))
	first := waits.Status.Revisions[0].DataVolume
	require.True(t, strings.HasSuffix(first, "-1"), first)
	theirs := &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: strings.TrimSuffix(first, "1") + "2"},
		Spec: cdiv1.DataVolumeSpec{
			Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
			Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			}},
		},
	}
	place.Create(t, theirs)
	got := failed(t, img, v1alpha1.ReasonDataVolumeRefused)
	assert.Contains(t, got.Status.Message, "exists and is not the agent's")

	next := place.Image(ns, "next", "/ok/0s/a")
	place.Create(t, next)
	succeeded(t, next)
	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs))
	assert.Nil(t, theirs.DeletionTimestamp)
}
