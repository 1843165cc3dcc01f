package v1alpha1

import (
	"encoding/json"
	"maps"
	"slices"
)

// Bounds of ReportRoot.imageFields.
const (
	MaxImageFields      = 64
	MaxImageFieldLength = 64
)

// imageFieldValues are the values of the fields of VMDiskImageSpec that take a closed set.
// A new value is added here, a new field to specFields, one within a field to fieldsWithin.
var imageFieldValues = map[string][]string{
	"pullMethod":   {string(PullPod), string(PullNode)},
	"sourceType":   {string(SourceS3), string(SourceHTTP), string(SourceGCS), string(SourceRegistry), string(SourceBlank), string(SourceDataSource)},
	"architecture": {string(ArchitectureAMD64), string(ArchitectureARM64), string(ArchitectureS390X)},
}

// fieldsWithin are the fields of those fields of VMDiskImageSpec that are objects.
var fieldsWithin = map[string][]string{
	"dataSource": {"name", "namespace"},
	"defaults":   {"instancetype", "instancetypeKind", "preference", "preferenceKind"},
	"publish":    {"dataSource", "name"},
}

// ImageFields returns what this version knows of VMDiskImageSpec, sorted: each field by its
// name, each field within it as in publish.name, and each value of a closed set as field=value.
func ImageFields() []string {
	fields := SpecFields()
	for name, within := range fieldsWithin {
		for _, field := range within {
			fields = append(fields, name+"."+field)
		}
	}
	for name, values := range imageFieldValues {
		for _, value := range values {
			fields = append(fields, name+"="+value)
		}
	}
	slices.Sort(fields)
	return fields
}

// ImageFieldsBefore returns what agents know that do not report imageFields: the fields of
// releases 0.1 and 0.2. Nothing is ever added.
func ImageFieldsBefore() []string {
	return []string{
		"certConfigMap", "checksum", "deleteUnreferencedAfter", "diskSize", "name", "priority", "secretRef", "snapshotClass",
		"sourceType", "sourceType=blank", "sourceType=http", "sourceType=registry", "sourceType=s3", "storageClass", "url",
	}
}

// UsedFields returns what a spec uses, sorted and as in ImageFields.
func (s *VMDiskImageSpec) UsedFields() []string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // the type holds only strings, numbers and quantities
	}
	set := map[string]any{}
	if err := json.Unmarshal(text, &set); err != nil {
		panic(err)
	}
	used := slices.Collect(maps.Keys(set))
	for name, value := range set {
		if object, ok := value.(map[string]any); ok {
			for field := range object {
				used = append(used, name+"."+field)
			}
		}
	}
	for name := range imageFieldValues {
		if value, ok := set[name].(string); ok {
			used = append(used, name+"="+value)
		}
	}
	slices.Sort(used)
	return used
}
