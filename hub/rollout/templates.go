package rollout

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// overridesNotKept says why a version has no template: without its overrides, it would bring back
// something else than the clusters had.
const overridesNotKept = "it has overrides, which are recorded of the versions that spec.retention keeps"

// recordTemplate stores the current template and overrides with the current version, the first
// of a list that has at least one. Only a changed spec can make the list too large: then those
// of the oldest versions are dropped.
func recordTemplate(versions []v1alpha1.VersionStatus, img *v1alpha1.FleetDiskImage) {
	keep, _ := readRetention(img)
	for i := range versions[min(keep, len(versions)):] {
		if v := &versions[keep+i]; v.Overrides != nil {
			v.Template, v.Overrides, v.TemplateOmitted = nil, nil, overridesNotKept
		}
	}
	current, source, overrides := &versions[0], img.Spec.Template.SourceFields(), recordedOverrides(img)
	if current.Template != nil && current.TemplateOmitted == "" && current.Template.Equal(source) && equality.Semantic.DeepEqual(current.Overrides, overrides) {
		return
	}
	current.Template, current.Overrides, current.TemplateOmitted = nil, nil, omissionReason(source, overrides)
	if current.TemplateOmitted != "" {
		return
	}
	current.Template, current.Overrides = source, overrides
	total := 0
	for i := range versions {
		v := &versions[i]
		if v.Template == nil {
			continue
		}
		if total += recordedSize(v.Template, v.Overrides); total > v1alpha1.MaxTemplatesBytes {
			v.Template, v.Overrides = nil, nil
			v.TemplateOmitted = fmt.Sprintf("the templates of newer versions fill the %d KiB that are recorded", v1alpha1.MaxTemplatesBytes>>10)
		}
	}
}

// recordedOverrides returns a copy of the overrides; nil for none.
func recordedOverrides(img *v1alpha1.FleetDiskImage) *v1alpha1.RecordedOverrides {
	if len(img.Spec.Overrides) == 0 {
		return nil
	}
	return (&v1alpha1.RecordedOverrides{Items: img.Spec.Overrides}).DeepCopy()
}

// omissionReason says why template and overrides are not recorded; empty: they are. A signature
// in the query of a URL, and a credential in a header, would outlive their removal from the spec.
func omissionReason(source *v1alpha1.VMDiskImageSpec, overrides *v1alpha1.RecordedOverrides) string {
	switch {
	case strings.ContainsAny(source.URL, "?#"):
		return "its url has a query, which may be a credential"
	case len(source.ExtraHeaders) > 0:
		return "it has extraHeaders, which may be credentials"
	}
	for i := range overrideItems(overrides) {
		o := &overrides.Items[i]
		switch {
		case o.URL != nil && strings.ContainsAny(*o.URL, "?#"):
			return fmt.Sprintf("the url of its overrides[%d] has a query, which may be a credential", i)
		case o.ExtraHeaders != nil && len(*o.ExtraHeaders) > 0:
			return fmt.Sprintf("its overrides[%d] has extraHeaders, which may be credentials", i)
		}
	}
	if recordedSize(source, overrides) > v1alpha1.MaxTemplateBytes {
		return fmt.Sprintf("it has more than %d KiB", v1alpha1.MaxTemplateBytes>>10)
	}
	return ""
}

func overrideItems(overrides *v1alpha1.RecordedOverrides) []v1alpha1.ImageOverride {
	if overrides == nil {
		return nil
	}
	return overrides.Items
}

func recordedSize(template *v1alpha1.VMDiskImageSpec, overrides *v1alpha1.RecordedOverrides) int {
	if overrides == nil {
		return v1alpha1.EncodedSize(template)
	}
	return v1alpha1.EncodedSize(template) + v1alpha1.EncodedSize(overrides)
}
