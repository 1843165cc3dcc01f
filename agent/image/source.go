package image

import (
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/metadataservice"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// DataVolumeHost returns the host that an image's DataVolume imports from; empty
// for none.
func DataVolumeHost(dv *cdiv1.DataVolume) string {
	switch s := dv.Spec.Source; {
	case s == nil:
		return ""
	case s.HTTP != nil:
		return v1alpha1.HostOfURL(s.HTTP.URL)
	case s.S3 != nil:
		return v1alpha1.HostOfURL(s.S3.URL)
	case s.GCS != nil:
		return v1alpha1.GCSHost
	case s.Registry != nil && s.Registry.URL != nil:
		return v1alpha1.HostOfURL(*s.Registry.URL)
	default:
		return ""
	}
}

// PreflightURL returns the URL at which the source can be probed with no credentials but
// headers, and whether there is one. A URL with a query is not probed: it may
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

// DescribeSourceProblem says why no DataVolume is created for a source; empty for nothing. The
// CRD refuses such images when they are written, but for unusual ways to write an address.
func DescribeSourceProblem(spec *v1alpha1.VMDiskImageSpec) string {
	if len(spec.ExtraHeaders) == 0 && len(spec.SecretExtraHeaders) == 0 {
		return ""
	}
	for i, header := range spec.ExtraHeaders {
		if _, _, ok := v1alpha1.ParseHeader(header); !ok {
			return fmt.Sprintf("spec.extraHeaders[%d] is no HTTP header that can be sent with a transfer, or is one for metadata services of clouds: remove it", i)
		}
	}
	if u, err := url.Parse(spec.URL); err != nil || metadataservice.MayBeHost(u.Hostname()) {
		return "the host of spec.url is a metadata service of a cloud, a link-local address, or an address in an unusual form, to which no headers are sent: " +
			"name another host, as in 192.0.2.1 or images.example.com, or remove spec.extraHeaders and spec.secretExtraHeaders"
	}
	return ""
}

// DescribeHeaderProblem says what keeps the values of a Secret from being sent as headers;
// empty for nothing. It quotes none of them.
func DescribeHeaderProblem(secret *corev1.Secret) string {
	const form = `make each value one header of one line, as in "Authorization: Bearer …" without a line break at its end`
	switch key, problem := v1alpha1.FindHeaderProblem(secret.Data); {
	case key != "":
		return fmt.Sprintf("key %s of Secret %s/%s of spec.secretExtraHeaders %s: %s", key, secret.Namespace, secret.Name, problem, form)
	case problem != "":
		return fmt.Sprintf("Secret %s/%s of spec.secretExtraHeaders %s: %s", secret.Namespace, secret.Name, problem, form)
	}
	return ""
}
