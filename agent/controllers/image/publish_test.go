package image

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/preflight"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// dataSourceWriter answers writes of DataSources, and counts what is deleted.
type dataSourceWriter struct {
	client.Client
	answer  error
	deleted []string
}

func (w *dataSourceWriter) Create(context.Context, client.Object, ...client.CreateOption) error {
	return w.answer
}

func (w *dataSourceWriter) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	w.deleted = append(w.deleted, o.GetName())
	return nil
}

// Storage that is not needed goes even if its image cannot be published: its slot may wait for that.
func TestRefusedDataSourceKeepsNoStorage(t *testing.T) {
	img := apitest.Image("ns/a").WithUID("image").Obj()
	decision := image.Decision{
		Status:      img.Status,
		DataSources: []image.DataSourceChange{{Operation: image.CreateDataSource, DataSource: &cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}}},
		Delete:      []image.DeleteTarget{{Kind: image.KindDataVolume, Name: "a-1", UID: "dv"}},
	}
	for name, tt := range map[string]struct {
		answer      error
		wantDeleted []string
	}{
		"refused":                 {apierrors.NewForbidden(cdiv1.Resource("datasources"), "a", errors.New("exceeded quota: data-sources")), []string{"a-1"}},
		"somebody else was first": {apierrors.NewAlreadyExists(cdiv1.Resource("datasources"), "a"), nil},
		"done":                    {nil, []string{"a-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &dataSourceWriter{answer: tt.answer}
			r := &Reconciler{Client: w, Preflight: preflight.New(nil, nil)}
			err := r.apply(t.Context(), img.DeepCopy(), decision)
			assert.Equal(t, tt.answer != nil, err != nil, "%v", err)
			assert.Equal(t, tt.wantDeleted, w.deleted)
		})
	}
}

// A webhook in the way of dry runs is said of the image, and asked again.
func TestRefusedClockIsShown(t *testing.T) {
	for name, answer := range map[string]error{
		"quota":              apierrors.NewForbidden(cdiv1.Resource("datasources"), "a", errors.New("exceeded quota: data-sources")),
		"no dry runs":        apierrors.NewBadRequest(`admission webhook "sources.example.com" does not support dry run`),
		"webhook is missing": apierrors.NewInternalError(errors.New(`failed calling webhook "sources.example.com": connection refused`)),
	} {
		t.Run(name, func(t *testing.T) {
			v := &image.View{Image: apitest.Image("ns/a").WithUID("image").Obj(), Publishing: &image.PublishingView{Served: true}}
			r := &Reconciler{Client: &dataSourceWriter{answer: answer}}
			require.NoError(t, r.askToPublish(t.Context(), v))
			assert.True(t, v.Publishing.ServerTime.IsZero())
			assert.NotEmpty(t, v.Publishing.Refusal)
		})
	}
}

// The cache of clones tells disks of an image's machines from those of another's.
func TestStripCloneKeepsWhatADiskWasClonedFrom(t *testing.T) {
	stripped, err := StripClone(&cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk", Annotations: map[string]string{
		v1alpha1.AnnotationClonedFrom: "image/r/1/claim", "another": "large",
	}}})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{v1alpha1.AnnotationClonedFrom: "image/r/1/claim"}, stripped.(*cdiv1.DataVolume).Annotations)
}

// What CDI never clones holds nothing, also as the cache has it.
func TestStripCloneKeepsWhetherItIsAClone(t *testing.T) {
	for _, annotation := range []string{cdiv1.AnnPrePopulated, cdiv1.AnnCheckStaticVolume} {
		dv := &cdiv1.DataVolume{Spec: cdiv1.DataVolumeSpec{SourceRef: &cdiv1.DataVolumeSourceRef{Kind: cdiv1.DataVolumeDataSource, Name: "ubuntu"}}}
		stripped, err := StripClone(dv)
		require.NoError(t, err)
		assert.True(t, image.IsClone(stripped.(*cdiv1.DataVolume)))
		dv.Annotations = map[string]string{annotation: strings.Repeat("x", 1<<18), v1alpha1.AnnotationClonedFrom: strings.Repeat("x", 1<<17)}
		stripped, err = StripClone(dv)
		require.NoError(t, err)
		assert.False(t, image.IsClone(stripped.(*cdiv1.DataVolume)), annotation)
		size := 0
		for key, value := range stripped.(*cdiv1.DataVolume).Annotations {
			size += len(key) + len(value)
		}
		assert.Less(t, size, 1024, "anybody may write much there")
		assert.NotSame(t, unsafe.StringData(dv.Annotations[v1alpha1.AnnotationClonedFrom]), unsafe.StringData(stripped.(*cdiv1.DataVolume).Annotations[v1alpha1.AnnotationClonedFrom]),
			"a part of a text keeps the whole in memory")
	}
}
