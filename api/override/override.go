// Package override computes which spec each cluster gets of a FleetDiskImage: its template with
// the overrides that select the cluster, and with the values of the cluster's labels. Hub, command
// line and read API tell the same by it.
package override

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Overrides are those of one FleetDiskImage, parsed. They are not safe for concurrent use:
// clusters that get the same spec share one Effective.
type Overrides struct {
	template v1alpha1.VMDiskImageSpec
	list     []parsedOverride
	known    map[effectiveKey]*Effective
}

type parsedOverride struct {
	*v1alpha1.ImageOverride
	selector labels.Selector
}

// effectiveKey decides what a cluster gets: the overrides that select it, and its url.
type effectiveKey struct {
	selecting uint64 // bit i: override i
	url       string
}

// Effective is what one cluster gets. It is shared and must not be changed.
type Effective struct {
	Spec v1alpha1.VMDiskImageSpec
	// Revision and Digest are those of Spec.
	Revision, Digest string
	// From has the index of the override that each overridden field comes from, by the field's
	// name in JSON. The other fields are the template's.
	From map[string]int
	// MissingLabels are the labels that url names and the cluster does not have, sorted. With
	// any, Spec is not to be used.
	MissingLabels []string
	// Invalid says in one sentence what is wrong with Spec and what to do; empty for nothing.
	// With it, no cluster begins with Spec.
	Invalid string
}

// maxKnown bounds what is remembered of clusters that have gone or have other labels now.
const maxKnown = 4096

// Parse parses the overrides of a FleetDiskImage. The error names the invalid field.
func Parse(img *v1alpha1.FleetDiskImage) (*Overrides, error) {
	o := &Overrides{template: *img.Spec.Template.DeepCopy(), known: map[effectiveKey]*Effective{}}
	if p := o.template.Publish; p != nil && p.DataSource && p.Name == "" {
		p.Name = img.ImageNameWithoutVersion()
	}
	if n := len(img.Spec.Overrides); n > v1alpha1.MaxOverrides {
		return nil, fmt.Errorf("spec.overrides has %d entries: the maximum is %d", n, v1alpha1.MaxOverrides)
	}
	for i := range img.Spec.Overrides {
		item := &img.Spec.Overrides[i]
		selector, err := v1alpha1.ParseSelector(item.ClusterSelector)
		if err != nil {
			return nil, fmt.Errorf("spec.overrides[%d].clusterSelector: %w", i, err)
		}
		o.list = append(o.list, parsedOverride{item, selector})
	}
	return o, nil
}

// For returns what a cluster with these labels gets.
func (o *Overrides) For(cluster string, clusterLabels map[string]string) *Effective {
	key, missing := effectiveKey{url: o.template.URL}, []string(nil)
	for i := range o.list {
		item := &o.list[i]
		if !slices.Contains(item.ClusterNames, cluster) && !item.selector.Matches(labels.Set(clusterLabels)) {
			continue
		}
		key.selecting |= 1 << i
		if item.URL != nil {
			key.url, missing = expand(*item.URL, cluster, clusterLabels)
		}
	}
	if e, ok := o.known[key]; ok {
		return e // a missing label stays in url as its variable
	}
	if len(o.known) >= maxKnown {
		clear(o.known)
	}
	e := o.merge(key)
	e.MissingLabels = missing
	// Invariant: a template without an override is never refused here. It is stored, and may be
	// older than a rule.
	if key.selecting != 0 && len(missing) == 0 {
		e.Invalid = e.explainInvalid()
	}
	o.known[key] = e
	return e
}

func (o *Overrides) merge(key effectiveKey) *Effective {
	e := &Effective{Spec: *o.template.DeepCopy(), From: map[string]int{}}
	for i := range o.list {
		if key.selecting&(1<<i) == 0 {
			continue
		}
		for _, field := range o.list[i].apply(&e.Spec) {
			e.From[field] = i
		}
	}
	e.Spec.URL = key.url
	e.dropFieldsOfFormerSource()
	e.Revision, e.Digest = e.Spec.Revision(), e.Spec.SourceDigest()
	return e
}

// dropFieldsOfFormerSource removes fields that go with the sourceType that an override replaces,
// and that no override can remove by an empty text. One that the same override sets, or a later
// one, stays: that is a mistake to be told.
func (e *Effective) dropFieldsOfFormerSource() {
	sourceType, replaced := e.From["sourceType"]
	isFormer := func(field string) bool {
		index, overridden := e.From[field]
		return replaced && (!overridden || index < sourceType)
	}
	if e.Spec.SourceType != v1alpha1.SourceDataSource && isFormer("dataSource") {
		e.Spec.DataSource = nil
		delete(e.From, "dataSource")
	}
	if e.Spec.SourceType != v1alpha1.SourceRegistry && isFormer("pullMethod") {
		e.Spec.PullMethod = ""
		delete(e.From, "pullMethod")
	}
	// An image of a DataSource is published by those who keep that.
	if e.Spec.SourceType == v1alpha1.SourceDataSource && replaced {
		e.Spec.Publish = nil
	}
}

// apply sets the fields that the override has, and returns their names.
func (o parsedOverride) apply(spec *v1alpha1.VMDiskImageSpec) (fields []string) {
	set(&fields, "sourceType", &spec.SourceType, o.SourceType)
	set(&fields, "url", &spec.URL, o.URL)
	set(&fields, "checksum", &spec.Checksum, o.Checksum)
	set(&fields, "secretRef", &spec.SecretRef, o.SecretRef)
	set(&fields, "certConfigMap", &spec.CertConfigMap, o.CertConfigMap)
	set(&fields, "extraHeaders", &spec.ExtraHeaders, o.ExtraHeaders)
	set(&fields, "secretExtraHeaders", &spec.SecretExtraHeaders, o.SecretExtraHeaders)
	set(&fields, "pullMethod", &spec.PullMethod, o.PullMethod)
	set(&fields, "storageClass", &spec.StorageClass, o.StorageClass)
	set(&fields, "snapshotClass", &spec.SnapshotClass, o.SnapshotClass)
	set(&fields, "architecture", &spec.Architecture, o.Architecture)
	set(&fields, "priority", &spec.Priority, o.Priority)
	if o.DiskSize != nil {
		size := o.DiskSize.DeepCopy()
		set(&fields, "diskSize", &spec.DiskSize, &size)
	}
	if o.DataSource != nil {
		reference := o.DataSource.DeepCopy()
		set(&fields, "dataSource", &spec.DataSource, &reference)
	}
	return fields
}

func set[T any](fields *[]string, name string, field, value *T) {
	if value != nil {
		*field = *value
		*fields = append(*fields, name)
	}
}
