package v1alpha1

import (
	"net/url"
	"strings"
)

// GCSHost serves gs:// URLs, which name a bucket in the place of a host.
const GCSHost = "storage.googleapis.com"

// maxHostLength is the limit of a DNS name.
const maxHostLength = 253

// SourceHost returns the host that an image is imported from, in lower case; empty for none.
func (s *VMDiskImageSpec) SourceHost() string {
	switch s.SourceType {
	case SourceBlank:
		return ""
	case SourceGCS:
		return GCSHost
	default:
		return HostOfURL(s.URL)
	}
}

// HostOfURL returns the host of a URL without its port, in lower case; empty for none.
func HostOfURL(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || len(u.Hostname()) > maxHostLength {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}
