package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestIsFor(t *testing.T) {
	class, block := "standard", corev1.PersistentVolumeBlock
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{selectedNodeAnnotation: "a"}},
			Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
		}
		change(c)
		return c
	}
	for _, test := range []struct {
		name   string
		change func(*corev1.PersistentVolumeClaim)
		want   bool
	}{
		{"waits for this node", func(*corev1.PersistentVolumeClaim) {}, true},
		{"for another node", func(c *corev1.PersistentVolumeClaim) { c.Annotations[selectedNodeAnnotation] = "b" }, false},
		{"its Pod is not placed yet", func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil }, false},
		{"has its volume", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-1" }, false},
		{"is bound", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound }, false},
		{"is going", func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }, false},
		{"no class", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }, false},
		{"is to be filled", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "VolumeImportSource"}
		}, false},
		{"a block device", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }, false},
	} {
		t.Run(test.name, func(t *testing.T) { assert.Equal(t, test.want, isClaimForNode(claim(test.change), "a")) })
	}
}

func TestIsReleased(t *testing.T) {
	volume := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{provisionedByAnnotation: provisionerName, selectedNodeAnnotation: "a"}},
			Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
				PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
		}
		change(v)
		return v
	}
	for _, test := range []struct {
		name   string
		change func(*corev1.PersistentVolume)
		want   bool
	}{
		{"released on this node", func(*corev1.PersistentVolume) {}, true},
		{"on another node", func(v *corev1.PersistentVolume) { v.Annotations[selectedNodeAnnotation] = "b" }, false},
		{"provisioned by another", func(v *corev1.PersistentVolume) { v.Annotations[provisionedByAnnotation] = "x" }, false},
		{"in use", func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }, false},
		{"to be kept", func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) { assert.Equal(t, test.want, isReleased(volume(test.change), "a")) })
	}
}
