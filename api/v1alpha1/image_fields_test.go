package v1alpha1

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The hub compares what agents know with what a template uses. A field or value that is not
// in the list counts as one that no agent knows.
func TestImageFieldsAreThoseOfTheSchema(t *testing.T) {
	text, err := os.ReadFile("../../charts/ot-agent/files/crds/pelotech.ot_vmdiskimages.yaml")
	require.NoError(t, err)
	type schema struct {
		Properties map[string]schema `json:"properties"`
		Enum       []any             `json:"enum"`
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal(text, &crd))
	var want []string
	for name, field := range crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties {
		want = append(want, name)
		for _, value := range field.Enum {
			want = append(want, name+"="+value.(string))
		}
		for within := range field.Properties {
			want = append(want, name+"."+within)
		}
	}
	assert.ElementsMatch(t, want, ImageFields(), "add the values to imageFieldValues")
	assert.True(t, slices.IsSorted(ImageFields()))
	assert.LessOrEqual(t, len(ImageFields()), MaxImageFields)
	for _, field := range ImageFields() {
		assert.LessOrEqual(t, len(field), MaxImageFieldLength, field)
	}
	assert.Subset(t, ImageFields(), ImageFieldsBefore(), "a stored name never vanishes")
}

// Whatever a spec can hold has a name: a field of a later version is otherwise taken for known.
func TestEveryImageFieldIsListed(t *testing.T) {
	spec := reflect.TypeFor[VMDiskImageSpec]()
	for i := range spec.NumField() {
		field := spec.Field(i)
		assert.False(t, field.Anonymous, field.Name)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		kind := field.Type
		for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
			kind = kind.Elem()
		}
		var within []string
		if kind.Kind() == reflect.Struct && kind != reflect.TypeFor[resource.Quantity]() && kind != reflect.TypeFor[metav1.Duration]() {
			require.NotEqual(t, reflect.Slice, field.Type.Kind(), field.Name)
			for j := range kind.NumField() {
				assert.Contains(t, []reflect.Kind{reflect.String, reflect.Bool}, kind.Field(j).Type.Kind(), "%s.%s", field.Name, kind.Field(j).Name)
				nested, _, _ := strings.Cut(kind.Field(j).Tag.Get("json"), ",")
				within = append(within, nested)
			}
		}
		assert.NotEqual(t, reflect.Map, kind.Kind(), field.Name)
		assert.ElementsMatch(t, within, fieldsWithin[name], name)
	}
	assert.LessOrEqual(t, len(ImageFields()), MaxImageFields)
}

func TestUsedFields(t *testing.T) {
	spec := VMDiskImageSpec{Name: "a", SourceType: SourceHTTP, URL: "https://a/b", DiskSize: resource.MustParse("1Gi")}
	assert.Equal(t, []string{"diskSize", "name", "sourceType", "sourceType=http", "url"}, spec.UsedFields())
	nested := VMDiskImageSpec{Publish: &Publish{DataSource: true}, DataSource: &DataSourceReference{Name: "a"}}
	assert.Subset(t, nested.UsedFields(), []string{"publish", "publish.dataSource", "dataSource", "dataSource.name"})
	spec.SourceType, spec.Checksum, spec.Priority = "torrent", "md5:0", 3
	spec.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour}
	assert.Equal(t, []string{"checksum", "deleteUnreferencedAfter", "diskSize", "name", "priority", "sourceType", "sourceType=torrent", "url"}, spec.UsedFields())
	for _, known := range []string{"sourceType=torrent"} {
		assert.NotContains(t, ImageFields(), known)
	}
	// Whatever a spec sets is listed.
	set := reflect.ValueOf(&spec).Elem()
	for i := range set.NumField() {
		if field := set.Field(i); field.Kind() == reflect.String && field.String() == "" {
			field.SetString("x")
		}
	}
	text, err := json.Marshal(spec)
	require.NoError(t, err)
	for _, name := range spec.UsedFields() {
		name, _, _ := strings.Cut(name, "=")
		assert.Contains(t, string(text), `"`+name+`":`)
		assert.Contains(t, ImageFields(), name)
	}
}
