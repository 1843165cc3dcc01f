//go:build linux

package workspaces

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestCorporaHaveEveryField wants cases for new fields of the specs, too.
func TestCorporaHaveEveryField(t *testing.T) {
	t.Parallel()
	images, machines, fleet := newImageCorpus(), newMachineCorpus(t), newFleetCorpus()
	for _, tt := range []struct {
		corpus *corpus
		spec   any
	}{{images, v1alpha1.VMDiskImageSpec{}}, {machines, v1alpha1.VirtualMachineSpec{}}, {fleet, v1alpha1.FleetDiskImageSpec{}}} {
		written := map[string]bool{}
		for _, c := range tt.corpus.cases {
			collectFields(c.object.Object["spec"], "spec", written)
		}
		var missing []string
		for _, field := range specFields(reflect.TypeOf(tt.spec), "spec") {
			if !written[field] {
				missing = append(missing, field)
			}
		}
		assert.Empty(t, missing, "no case of the corpus of %s sets them", tt.corpus.kind)
	}
}

// collectFields adds the paths of all fields of a value, without indexes.
func collectFields(value any, path string, fields map[string]bool) {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			fields[path+"."+key] = true
			collectFields(value[key], path+"."+key, fields)
		}
	case []any:
		for _, item := range value {
			collectFields(item, path, fields)
		}
	}
}

// specFields returns the paths of all fields of a type of ours. Specs of images within other
// specs have a corpus of their own.
func specFields(t reflect.Type, path string) (fields []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[v1alpha1.VMDiskImageSpec]().PkgPath() || (path != "spec" && t == reflect.TypeFor[v1alpha1.VMDiskImageSpec]()) {
		return nil
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fields = append(fields, path+"."+name)
		fields = append(fields, specFields(t.Field(i).Type, path+"."+name)...)
	}
	return fields
}
