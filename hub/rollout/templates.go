package rollout

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// recordTemplate stores the current template with the current version, the first of a list
// that has at least one. Only a changed template can make the list too large: then those of
// the oldest versions are dropped.
func recordTemplate(versions []v1alpha1.VersionStatus, template *v1alpha1.VMDiskImageSpec) {
	current, source := &versions[0], template.SourceFields()
	if current.Template != nil && current.TemplateOmitted == "" && current.Template.Equal(source) {
		return
	}
	current.Template, current.TemplateOmitted = nil, omissionReason(source)
	if current.TemplateOmitted != "" {
		return
	}
	current.Template = source
	total := 0
	for i := range versions {
		v := &versions[i]
		if v.Template == nil {
			continue
		}
		if total += encodedSize(v.Template); total > v1alpha1.MaxTemplatesBytes {
			v.Template = nil
			v.TemplateOmitted = fmt.Sprintf("the templates of newer versions fill the %d KiB that are recorded", v1alpha1.MaxTemplatesBytes>>10)
		}
	}
}

// omissionReason says why a template is not recorded; empty: it is. A signature in the query of
// a URL, and a credential in a header, would outlive their removal from the spec.
func omissionReason(source *v1alpha1.VMDiskImageSpec) string {
	switch {
	case strings.ContainsAny(source.URL, "?#"):
		return "its url has a query, which may be a credential"
	case len(source.ExtraHeaders) > 0:
		return "it has extraHeaders, which may be credentials"
	case encodedSize(source) > v1alpha1.MaxTemplateBytes:
		return fmt.Sprintf("it has more than %d KiB", v1alpha1.MaxTemplateBytes>>10)
	default:
		return ""
	}
}

func encodedSize(spec *v1alpha1.VMDiskImageSpec) int {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // the type holds only strings, numbers and quantities
	}
	return len(text)
}
