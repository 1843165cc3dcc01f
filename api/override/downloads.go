package override

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Download is what clusters download from one host.
type Download struct {
	// Host of the sources; empty where they name none.
	Host string `json:"host,omitempty"`
	// Clusters that download, and Bytes of all of them.
	Clusters int   `json:"clusters"`
	Bytes    int64 `json:"bytes"`
	// AtMost: the size of some downloads is not known, and that of their disks was taken.
	AtMost bool `json:"atMost,omitempty"`
}

// Downloads counts what clusters download by a change.
type Downloads struct {
	template   *v1alpha1.VMDiskImageSpec
	knownBytes int64
	byHost     map[string]*Download
}

// NewDownloads counts nothing yet. knownBytes is the size of the template's download; 0 where it
// is not known.
func NewDownloads(template *v1alpha1.VMDiskImageSpec, knownBytes int64) *Downloads {
	return &Downloads{template, knownBytes, map[string]*Download{}}
}

// EachBytes returns what a cluster with a spec downloads. AtMost: it is the size of the disk.
func (d *Downloads) EachBytes(spec *v1alpha1.VMDiskImageSpec) (bytes int64, atMost bool) {
	switch {
	case spec.SourceType == v1alpha1.SourceBlank, spec.SourceType == v1alpha1.SourceDataSource:
		return 0, false
	case d.knownBytes > 0 && isSameFile(d.template, spec):
		return d.knownBytes, false
	default:
		return spec.DiskSize.Value(), true
	}
}

// isSameFile reports whether two specs download the same: from the same url, or with the same
// checksum, as from a mirror.
func isSameFile(a, b *v1alpha1.VMDiskImageSpec) bool {
	return a.SourceType == b.SourceType && (a.URL == b.URL && a.Checksum == b.Checksum || a.Checksum != "" && a.Checksum == b.Checksum)
}

// Add counts a cluster that gets another revision. One that gets nothing is not counted.
func (d *Downloads) Add(e *Effective) {
	if !e.IsUsable() {
		return
	}
	bytes, atMost := d.EachBytes(&e.Spec)
	if bytes == 0 {
		return
	}
	host := e.Spec.SourceHost()
	if d.byHost[host] == nil {
		d.byHost[host] = &Download{Host: host}
	}
	of := d.byHost[host]
	of.Clusters++
	of.Bytes += bytes
	of.AtMost = of.AtMost || atMost
}

// maxHostBytes bounds the name of a host that is shown.
const maxHostBytes = 253

// ListByHost returns the downloads, the largest first.
func (d *Downloads) ListByHost() []Download {
	list := make([]Download, 0, len(d.byHost))
	for _, of := range d.byHost {
		shown := *of
		shown.Host = v1alpha1.SanitizeText(of.Host, maxHostBytes)
		list = append(list, shown)
	}
	slices.SortFunc(list, func(a, b Download) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Host, b.Host))
	})
	return list
}

// Total sums up all hosts.
func (d *Downloads) Total() (total Download) {
	for _, of := range d.byHost {
		total.Clusters += of.Clusters
		total.Bytes += of.Bytes
		total.AtMost = total.AtMost || of.AtMost
	}
	return total
}

// IsUsable reports whether the cluster can begin with the spec.
func (e *Effective) IsUsable() bool { return len(e.MissingLabels) == 0 && e.Invalid == "" }

// WhyUnusable says why the cluster waits, and what to do; empty where it does not.
func (e *Effective) WhyUnusable() string {
	switch n := len(e.MissingLabels); {
	case n > 0:
		what := "label "
		if n > 1 {
			what = "labels "
		}
		return v1alpha1.SanitizeText("its MemberCluster has no "+what+strings.Join(e.MissingLabels, ", ")+", which "+Name(e.From["url"])+
			".url names: set it there, or have the override select other clusters", maxInvalidBytes)
	default:
		return e.Invalid
	}
}
