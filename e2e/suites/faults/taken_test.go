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
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestTakenDataVolumeNameIsSkipped: who may create DataVolumes can guess the name of the next
// attempt's. That must not hold its slot for ever, nor touch what is theirs.
func TestTakenDataVolumeNameIsSkipped(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "1", "retryLimit", "1", "retryBackoffDuration", "15s"))
	ns := createHomeNamespace(t)
	img := testScene.NewImage(ns, "image", "/servererror/a")
	testScene.Create(t, img)
	waits := testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonBackingOff))
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
	testScene.Create(t, theirs)
	got := awaitFailed(t, img, v1alpha1.ReasonDataVolumeRefused)
	assert.Contains(t, got.Status.Message, "exists and is not the agent's")

	next := testScene.NewImage(ns, "next", "/ok/0s/a")
	testScene.Create(t, next)
	awaitSucceeded(t, next)
	require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs))
	assert.Nil(t, theirs.DeletionTimestamp)
}
