package v1alpha1

import (
	"slices"

	"k8s.io/utils/ptr"
)

// specFields are all fields of a VMDiskImageSpec, by their names in JSON. Hub and agent copy
// a spec as a whole, and compare it by this list.
var specFields = []struct {
	name string
	same func(a, b *VMDiskImageSpec) bool
}{
	{"name", func(a, b *VMDiskImageSpec) bool { return a.Name == b.Name }},
	{"url", func(a, b *VMDiskImageSpec) bool { return a.URL == b.URL }},
	{"sourceType", func(a, b *VMDiskImageSpec) bool { return a.SourceType == b.SourceType }},
	{"checksum", func(a, b *VMDiskImageSpec) bool { return a.Checksum == b.Checksum }},
	{"diskSize", func(a, b *VMDiskImageSpec) bool { return a.DiskSize.Cmp(b.DiskSize) == 0 }},
	{"storageClass", func(a, b *VMDiskImageSpec) bool { return a.StorageClass == b.StorageClass }},
	{"snapshotClass", func(a, b *VMDiskImageSpec) bool { return a.SnapshotClass == b.SnapshotClass }},
	{"secretRef", func(a, b *VMDiskImageSpec) bool { return a.SecretRef == b.SecretRef }},
	{"certConfigMap", func(a, b *VMDiskImageSpec) bool { return a.CertConfigMap == b.CertConfigMap }},
	{"extraHeaders", func(a, b *VMDiskImageSpec) bool { return slices.Equal(a.ExtraHeaders, b.ExtraHeaders) }},
	{"secretExtraHeaders", func(a, b *VMDiskImageSpec) bool {
		return slices.Equal(a.SecretExtraHeaders, b.SecretExtraHeaders)
	}},
	{"pullMethod", func(a, b *VMDiskImageSpec) bool { return a.PullMethod == b.PullMethod }},
	{"architecture", func(a, b *VMDiskImageSpec) bool { return a.Architecture == b.Architecture }},
	{"dataSource", func(a, b *VMDiskImageSpec) bool { return ptr.Equal(a.DataSource, b.DataSource) }},
	{"publish", func(a, b *VMDiskImageSpec) bool { return ptr.Equal(a.Publish, b.Publish) }},
	{"defaults", func(a, b *VMDiskImageSpec) bool { return ptr.Equal(a.Defaults, b.Defaults) }},
	{"priority", func(a, b *VMDiskImageSpec) bool { return a.Priority == b.Priority }},
	{"deleteUnreferencedAfter", func(a, b *VMDiskImageSpec) bool {
		return ptr.Equal(a.DeleteUnreferencedAfter, b.DeleteUnreferencedAfter)
	}},
}

// SpecFields returns the names of all fields of a VMDiskImageSpec.
func SpecFields() (names []string) {
	for _, field := range specFields {
		names = append(names, field.name)
	}
	return names
}

// DiffersIn returns the names of the fields in which two specs differ. Quantities that are
// written differently can be equal.
func (s *VMDiskImageSpec) DiffersIn(other *VMDiskImageSpec) (names []string) {
	for _, field := range specFields {
		if !field.same(s, other) {
			names = append(names, field.name)
		}
	}
	return names
}

// Equal reports whether two specs differ in no field.
func (s *VMDiskImageSpec) Equal(other *VMDiskImageSpec) bool {
	if s == other {
		return true
	}
	for _, field := range specFields {
		if !field.same(s, other) {
			return false
		}
	}
	return true
}

// SourceFields returns a copy without the fields that say nothing about the source or its
// storage: priority, deleteUnreferencedAfter, publish and defaults.
func (s *VMDiskImageSpec) SourceFields() *VMDiskImageSpec {
	return (&VMDiskImageSpec{}).WithSourceFields(s)
}

// WithSourceFields returns a copy that has the fields of SourceFields from another spec.
func (s *VMDiskImageSpec) WithSourceFields(other *VMDiskImageSpec) *VMDiskImageSpec {
	spec, own := other.DeepCopy(), s.DeepCopy()
	spec.Priority, spec.DeleteUnreferencedAfter, spec.Publish, spec.Defaults = own.Priority, own.DeleteUnreferencedAfter, own.Publish, own.Defaults
	return spec
}
