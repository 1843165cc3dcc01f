package image

import (
	"net/url"
	"strings"

	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxHostLength is the limit of a DNS name.
const maxHostLength = 253

// HostOf returns the host that an image is imported from, in lower case; empty for
// none.
func HostOf(spec v1alpha1.VMDiskImageSpec) string {
	if spec.SourceType == v1alpha1.SourceBlank {
		return ""
	}
	return parseHost(spec.URL)
}

// DataVolumeHost returns the host that an image's DataVolume imports from; empty
// for none.
func DataVolumeHost(dv *cdiv1.DataVolume) string {
	switch s := dv.Spec.Source; {
	case s == nil:
		return ""
	case s.HTTP != nil:
		return parseHost(s.HTTP.URL)
	case s.S3 != nil:
		return parseHost(s.S3.URL)
	case s.Registry != nil && s.Registry.URL != nil:
		return parseHost(*s.Registry.URL)
	default:
		return ""
	}
}

func parseHost(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || len(u.Hostname()) > maxHostLength {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}

// PreflightURL returns the URL at which the source can be probed without
// credentials, and whether there is one. A URL with a query is not probed: it may
// be signed for GET, and refuse HEAD although the image exists.
func PreflightURL(spec v1alpha1.VMDiskImageSpec) (string, bool) {
	if spec.SourceType != v1alpha1.SourceHTTP || spec.SecretRef != "" || spec.CertConfigMap != "" {
		return "", false
	}
	u, err := url.Parse(spec.URL)
	if err != nil || u.RawQuery != "" || u.User != nil || u.Host == "" {
		return "", false
	}
	return spec.URL, true
}
