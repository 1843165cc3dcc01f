package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestCacheKeepsNothingOfOthersThatIsNotRead(t *testing.T) {
	cached := cacheOptions(options{})
	keys := map[string]string{"other": "x", v1alpha1.LabelImageUID: "image"}
	trimmed, err := cached.DefaultTransform(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Labels: keys, Annotations: keys}})
	require.NoError(t, err)
	want := map[string]string{v1alpha1.LabelImageUID: "image"}
	assert.Equal(t, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Labels: want, Annotations: want}}, trimmed)
	for o, options := range cached.ByObject {
		assert.Nil(t, options.Transform, "%T has another transform", o)
	}
}
