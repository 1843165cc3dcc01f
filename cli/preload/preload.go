// Package preload decides what kubectl ot preload brings where, and what that costs.
package preload

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// Preload is what is brought to clusters.
type Preload struct {
	render.Envelope
	Images []Image `json:"images"`
	// Bytes of all images together; AtMost: some are counted by the size of their disks.
	Bytes  int64 `json:"bytes"`
	AtMost bool  `json:"atMost,omitempty"`
	// Written: it is stored. DryRun: nothing is.
	Written bool `json:"written"`
	DryRun  bool `json:"dryRun,omitempty"`
	// Before is until when it is to be done, and InTime whether it is expected to be: Yes, No or Unknown.
	Before *metav1.Time `json:"before,omitempty"`
	InTime InTime       `json:"inTime,omitempty"`
	// Unread says what estimates do without.
	Unread string `json:"unread,omitempty"`

	now time.Time
}

// Image is one image with the clusters that were asked for, each counted once.
type Image struct {
	// Name of the FleetDiskImage; Image is that of the current version in clusters.
	Name    string `json:"name"`
	Version string `json:"version"`
	Image   string `json:"image"`
	// Download are the clusters that download it. Silent ones of them do so when they are back.
	Download []string `json:"download"`
	Silent   []string `json:"silent,omitempty"`
	// Placed clusters get it anyway by the placement; There have it.
	Placed []string `json:"placed,omitempty"`
	There  []string `json:"there,omitempty"`
	// Excluded clusters are in spec.placement.excludedClusters: they get nothing.
	Excluded []string `json:"excluded,omitempty"`
	// BytesEach is what others have downloaded, in the mean; AtMost: it is diskSize, since none has.
	BytesEach int64    `json:"bytesEach"`
	AtMost    bool     `json:"atMost,omitempty"`
	Bytes     int64    `json:"bytes"`
	Notes     []string `json:"notes,omitempty"`
	// Expected is when each of Download and Placed has it. ExpectedBy is when the last of them has; absent where that
	// is not known.
	Expected   []Expected        `json:"expected,omitempty"`
	ExpectedBy *readapi.Estimate `json:"expectedBy,omitempty"`

	// knownBytes of a download from the template's url; 0 where they are not known.
	knownBytes int64
}

// FindImage returns the FleetDiskImage that a person means: by its name, or by that of its
// current image, as in win-11-24.2.
func FindImage(images []v1alpha1.FleetDiskImage, name string) (*v1alpha1.FleetDiskImage, error) {
	former := ""
	for i := range images {
		img := &images[i]
		if img.Name == name || img.ImageNameForVersion(img.Spec.Version) == name {
			return img, nil
		}
		for _, v := range img.Status.Versions {
			if v.Image == name {
				former = fmt.Sprintf("%s is a former version of FleetDiskImage %s, which is at %s: %s goes back to it", name, img.Name, img.Spec.Version,
					shellword.FormatCommand("kubectl ot rollout abort %s --back-to %s", img.Name, v.Version))
			}
		}
	}
	if former != "" {
		return nil, fmt.Errorf("%s", former)
	}
	return nil, fmt.Errorf("there is no FleetDiskImage %s, and none with an image of that name: kubectl ot image publish makes one", name)
}

// Target is a cluster that was asked for, with what it reports.
type Target struct {
	Member   *v1alpha1.MemberCluster
	Reported []v1alpha1.ReportedImage
	// Activity is what it imports and queues, observed at ObservedAt by the clock of now; nil where that is
	// unknown.
	Activity     *v1alpha1.ReportedActivity
	ObservedAt   time.Time
	SourceLimits map[string]int32
	// Shortages are why there is no room for a FleetDiskImage, by its name, as the cluster itself says.
	Shortages map[string]string
}

// NewImage decides what one image costs. downloadBytes is what another cluster has downloaded
// for it; 0 where that is unknown.
func NewImage(img *v1alpha1.FleetDiskImage, targets []Target, downloadBytes int64) (Image, error) {
	i := Image{Name: img.Name, Version: img.Spec.Version, Image: img.Spec.TargetNamespace + "/" + img.ImageNameForVersion(img.Spec.Version), Download: []string{}}
	placement, err := rollout.NewPlacement(&img.Spec.Placement)
	if err != nil {
		return i, err
	}
	overrides, err := override.Parse(img)
	if err != nil {
		return i, err
	}
	var downloading []*override.Effective
	for _, t := range targets {
		name, effective := t.Member.Name, overrides.For(t.Member.Name, t.Member.Labels)
		r := rollout.FindReported(t.Reported, img.Spec.TargetNamespace, img.ImageNameForVersion(img.Spec.Version))
		switch {
		case slices.Contains(img.Spec.Placement.ExcludedClusters, name):
			i.Excluded = append(i.Excluded, name)
		case r != nil && r.Phase == v1alpha1.PhaseSucceeded && r.Revision == effective.Revision && rollout.WhyUnknown(t.Member) == "":
			i.There = append(i.There, name)
			if effective.Spec.URL == img.Spec.Template.URL {
				downloadBytes = max(downloadBytes, r.DownloadBytes)
			}
		case placement.Selects(t.Member):
			i.Placed = append(i.Placed, name)
		default:
			i.Download = append(i.Download, name)
			downloading = append(downloading, effective)
			if why := effective.WhyUnusable(); why != "" {
				i.Notes = append(i.Notes, fmt.Sprintf("%s is placed, and waits: %s", name, why))
			}
			if rollout.WhyUnknown(t.Member) != "" {
				i.Silent = append(i.Silent, name)
			}
		}
	}
	i.knownBytes = downloadBytes
	downloads := override.NewDownloads(&img.Spec.Template, downloadBytes)
	for _, effective := range downloading {
		downloads.Add(effective)
	}
	i.BytesEach, i.AtMost = downloads.EachBytes(&img.Spec.Template)
	if total := downloads.Total(); total.Clusters > 0 {
		i.Bytes, i.AtMost, i.BytesEach = total.Bytes, total.AtMost, total.Bytes/int64(total.Clusters)
	}
	if len(i.Download) > 0 && img.Spec.Rollout.Paused {
		i.Notes = append(i.Notes, "its rollout is paused: "+shellword.FormatCommand("kubectl ot rollout resume %s", img.Name)+" lets it begin")
	}
	return i, nil
}

// New sums up.
func New(now time.Time, images []Image) *Preload {
	p := &Preload{Envelope: render.NewEnvelope("Preload"), Images: images, now: now}
	for i := range images {
		p.Bytes += images[i].Bytes
		p.AtMost = p.AtMost || images[i].AtMost && images[i].Bytes > 0
	}
	return p
}

// MaxClusterNames is how many clusters a placement names, as the API has it.
const MaxClusterNames = 1000

// Place adds clusters to a placement in place: waves and pace of the rollout count for them, too.
func Place(img *v1alpha1.FleetDiskImage, clusters []string) error {
	names := slices.Clone(img.Spec.Placement.ClusterNames)
	for _, name := range clusters {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) > MaxClusterNames {
		return fmt.Errorf("FleetDiskImage %s would name %d clusters, and at most %d can be named: select them by labels, in spec.placement.clusterSelector", img.Name, len(names), MaxClusterNames)
	}
	slices.Sort(names)
	img.Spec.Placement.ClusterNames = names
	return nil
}

// Draw draws the cost, or what was done.
func (p *Preload) Draw(page *render.Page) {
	title := "WOULD DOWNLOAD"
	if p.Written {
		title = "DOWNLOADS"
	}
	for i := range p.Images {
		image := &p.Images[i]
		page.Line(render.Bold("%s", title), render.Text("  %s %s to %s: %s%s (%s each)", image.Name, image.Version,
			render.Count(len(image.Download), "cluster"), atMost(image.AtMost), render.Bytes(image.Bytes), render.Bytes(image.BytesEach)))
		for _, group := range []struct {
			sign  render.Sign
			text  string
			names []string
		}{
			{render.Waiting, "to", image.Download}, {render.Unknown, "silent, when they are back", image.Silent}, {render.Done, "there already", image.There},
			{render.Running, "get it anyway", image.Placed}, {render.Attention, "excluded by spec.placement", image.Excluded},
		} {
			if len(group.names) > 0 {
				page.Lines(append(render.Line{render.Text("  ")}, group.sign.With("%s: %s", group.text, listNames(group.names))...))
			}
		}
		p.drawExpected(page, image)
		for _, note := range image.Notes {
			page.Lines(append(render.Line{render.Text("  ")}, render.Attention.With("%s", note)...))
		}
	}
	if len(p.Images) > 1 {
		page.Line(render.Text("together %s%s", atMost(p.AtMost), render.Bytes(p.Bytes)))
	}
	if p.Unread != "" {
		page.Line(render.Dim("%s", p.Unread))
	}
	if p.DryRun {
		page.Line(render.Text("dry run: nothing is written"))
	}
}

func atMost(is bool) string {
	if is {
		return "at most "
	}
	return ""
}

// maxListed is how many clusters the screen names; the JSON has all.
const maxListed = 12

func listNames(names []string) string {
	if len(names) <= maxListed {
		return strings.Join(names, " ")
	}
	return strings.Join(names[:maxListed], " ") + " …"
}

// Names are for -o name.
func (p *Preload) Names() (names []string) {
	for i := range p.Images {
		names = append(names, render.Reference("FleetDiskImage", p.Images[i].Name))
	}
	return names
}

// HasDownloads reports whether anything would be downloaded.
func (p *Preload) HasDownloads() bool {
	return slices.ContainsFunc(p.Images, func(i Image) bool { return len(i.Download) > 0 })
}

// CheckExisting refuses to preload an image that a member has already, unless that is the one to create, with the
// mark by which the plan takes it over, and it neither has failed nor is pruned: a preload that began before is not
// in the member's report yet. scope are the flags by which the member was reached.
func CheckExisting(stored, image *v1alpha1.VMDiskImage, cluster string, scope []string) error {
	stays := stored.DeletionTimestamp == nil && stored.Status.Phase != v1alpha1.PhaseFailed && stored.Status.Phase != v1alpha1.PhasePrunePending
	isPlanned := stored.Labels[v1alpha1.LabelPlanned] == image.Labels[v1alpha1.LabelPlanned]
	if stays && isPlanned && stored.Spec.Revision() == image.Spec.Revision() {
		return nil
	}
	words := append([]string{shellword.FormatCommand("kubectl ot why image %s -n %s", image.Name, image.Namespace)}, scope...)
	return fmt.Errorf("VMDiskImage %s/%s exists in %s: %s says what it does", image.Namespace, image.Name, cluster, strings.Join(words, " "))
}

// NewMemberImage returns the VMDiskImage to create in one member, marked so that the plan takes it
// over once it places the image there. It is what spec.overrides make of the template there.
func NewMemberImage(img *v1alpha1.FleetDiskImage, member *v1alpha1.MemberCluster) (*v1alpha1.VMDiskImage, error) {
	overrides, err := override.Parse(img)
	if err != nil {
		return nil, err
	}
	effective := overrides.For(member.Name, member.Labels)
	if why := effective.WhyUnusable(); why != "" {
		return nil, fmt.Errorf("FleetDiskImage %s cannot be brought to %s: %s", img.Name, member.Name, why)
	}
	image := &v1alpha1.VMDiskImage{Spec: *effective.Spec.DeepCopy()}
	image.Namespace, image.Name = img.Spec.TargetNamespace, img.ImageNameForVersion(img.Spec.Version)
	image.Labels = map[string]string{v1alpha1.LabelPlanned: "true"}
	return image, nil
}
