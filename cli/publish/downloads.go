package publish

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/specvalidation"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// WaitingCluster cannot begin until a person acts.
type WaitingCluster struct {
	Cluster string `json:"cluster"`
	Why     string `json:"why"`
}

// fleetSpec tells what each cluster is to have of a FleetDiskImage.
type fleetSpec struct {
	image     *v1alpha1.FleetDiskImage
	placement *rollout.Placement
	overrides *override.Overrides
}

func newFleetSpec(img *v1alpha1.FleetDiskImage) (*fleetSpec, error) {
	placement, err := rollout.NewPlacement(&img.Spec.Placement)
	if err != nil {
		return nil, err
	}
	overrides, err := override.Parse(img)
	if err != nil {
		return nil, err
	}
	return &fleetSpec{img, placement, overrides}, nil
}

// findEffective returns what a cluster is to have; nil for nothing, for example where there is no FleetDiskImage.
func (s *fleetSpec) findEffective(m *v1alpha1.MemberCluster) *override.Effective {
	if s == nil || !s.placement.Selects(m) {
		return nil
	}
	return s.overrides.For(m.Name, m.Labels)
}

// hasSameImages reports whether clusters keep the VMDiskImages that they have.
func (s *fleetSpec) hasSameImages(other *fleetSpec) bool {
	return s != nil && s.image.Spec.Version == other.image.Spec.Version && s.image.Spec.TargetNamespace == other.image.Spec.TargetNamespace &&
		s.image.ImageNameWithoutVersion() == other.image.ImageNameWithoutVersion()
}

// countDownloads counts the clusters that the placement selects, and what those of them download
// that get another revision by this change.
func (p *Plan) countDownloads(stored *v1alpha1.FleetDiskImage, desired *v1alpha1.FleetDiskImageSpec, members []v1alpha1.MemberCluster) (err error) {
	image := &v1alpha1.FleetDiskImage{Spec: *desired}
	image.Name = p.Name
	after, err := newFleetSpec(image)
	if err != nil {
		return err
	}
	var before *fleetSpec
	if stored != nil {
		// What is stored and cannot be read has been given to no cluster.
		before, _ = newFleetSpec(stored)
	}
	knownBytes := p.SourceBytes
	if p.Disk != nil {
		knownBytes = p.Disk.FileBytes
	}
	downloads := override.NewDownloads(&desired.Template, knownBytes)
	p.BytesEach, p.AtMost = downloads.EachBytes(&desired.Template)
	sameImages, otherAccess := before.hasSameImages(after), 0
	hidden := map[int][]string{}
	p.Total = len(members)
	for i := range members {
		m := &members[i]
		effective := after.findEffective(m)
		if effective == nil {
			continue
		}
		p.Clusters++
		if why := effective.WhyUnusable(); why != "" {
			p.Waiting = append(p.Waiting, WaitingCluster{m.Name, why})
			continue
		}
		switch former := before.findEffective(m); {
		case former == nil, !sameImages, former.Revision != effective.Revision:
			downloads.Add(effective)
		case former.Digest != effective.Digest:
			otherAccess++
		}
		if index, ok := effective.From["url"]; ok && stored != nil && stored.Spec.Template.URL != desired.Template.URL && hasOverrideURL(stored, *desired.Overrides[index].URL) {
			hidden[index] = append(hidden[index], m.Name)
		}
	}
	total := downloads.Total()
	p.Downloads, p.Bytes = downloads.ListByHost(), total.Bytes
	if total.Clusters > 0 {
		p.AtMost = total.AtMost
	}
	if p.Clusters == 0 {
		p.Notes = append(p.Notes, "no cluster of the fleet is selected: nothing is downloaded until one is")
	}
	if otherAccess > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("in %s only the way to the source or the snapshots change: that waits for their wave, and nothing is downloaded", render.Count(otherAccess, "cluster")))
	}
	for _, index := range slices.Sorted(maps.Keys(hidden)) {
		p.Notes = append(p.Notes, fmt.Sprintf("the new url does not reach %s (%s): %s.url is as before and comes first there, %s; publish with -f, where spec.overrides have the new one",
			render.Count(len(hidden[index]), "cluster"), listNames(hidden[index]), override.Name(index), v1alpha1.SanitizeText(v1alpha1.RedactURL(*desired.Overrides[index].URL), maxShownValue)))
	}
	return nil
}

// compareSource notes where what the source says cannot be the file, or does not fit on the disk. The
// file may be uploaded later: it is no error.
func (p *Plan) compareSource(desired *v1alpha1.FleetDiskImageSpec) {
	if p.SourceBytes == 0 {
		return
	}
	if p.Disk != nil && p.Disk.FileBytes != p.SourceBytes {
		p.Notes = append(p.Notes, fmt.Sprintf("the source has %d bytes, and %s has %d: clusters would download it and refuse its checksum, unless it is uploaded before", p.SourceBytes, p.Disk.Path, p.Disk.FileBytes))
	}
	size := &desired.Template.DiskSize
	// A qcow2 of a full disk is a little larger than that.
	if !size.IsZero() && p.SourceBytes > size.Value()+size.Value()/100 {
		p.Notes = append(p.Notes, fmt.Sprintf("the download, %s, is larger than the disk, %s: correct --size", render.Bytes(p.SourceBytes), size.String()))
	}
}

// noteAbsentClusters notes the names of a placement that no cluster of the fleet has: a cluster of that
// name may join later, or the name is misspelt.
func (p *Plan) noteAbsentClusters(placement *v1alpha1.Placement, members []v1alpha1.MemberCluster) {
	absent := func(names []string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return slices.ContainsFunc(members, func(m v1alpha1.MemberCluster) bool { return m.Name == name })
		})
	}
	if names := absent(placement.ClusterNames); len(names) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("the fleet has no cluster %s: it gets the image once it joins", listNames(names)))
	}
	if names := absent(placement.ExcludedClusters); len(names) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("the fleet has no cluster %s, which spec.placement.excludedClusters names", listNames(names)))
	}
}

// hasOverrideURL reports whether an override has had a url before the change.
func hasOverrideURL(stored *v1alpha1.FleetDiskImage, url string) bool {
	return url != "" && slices.ContainsFunc(stored.Spec.Overrides, func(o v1alpha1.ImageOverride) bool { return o.URL != nil && *o.URL == url })
}

// maxListed is how many clusters a sentence names; the JSON has all.
const maxListed = 5

func listNames(names []string) string {
	if len(names) <= maxListed {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:maxListed], ", ") + " …"
}

// CheckTemplate says which rules of the API server the template breaks, where that is not asked.
func (p *Plan) CheckTemplate() error {
	spec, ok := p.Object.Object["spec"].(map[string]any)
	if !ok {
		return nil
	}
	template, ok := spec["template"].(map[string]any)
	if !ok || !p.Created {
		return nil // what is stored, and not in the plan, is valid
	}
	decoded, err := decode(map[string]any{"template": template})
	if err != nil {
		return err
	}
	problems, err := specvalidation.FindProblems(&decoded.Template)
	if err != nil || len(problems) == 0 {
		return err
	}
	return fmt.Errorf("spec.template of FleetDiskImage %s is invalid: %s", p.Name, problems[0].Message)
}

// drawDownloads draws what is downloaded from where, where that is not the same for all clusters.
func (p *Plan) drawDownloads(page *render.Page) {
	if len(p.Downloads) > 1 || len(p.Downloads) == 1 && p.Downloads[0].Clusters != p.Clusters {
		for _, d := range p.Downloads[:min(len(p.Downloads), maxListed)] {
			page.Line(render.Text("    %s from %s: %s%s", render.Count(d.Clusters, "cluster"), d.Host, atMost(d.AtMost), render.Bytes(d.Bytes)))
		}
		if more := len(p.Downloads) - maxListed; more > 0 {
			page.Line(render.Text("    and from %d more hosts: -o json has all", more))
		}
	}
	for i := range p.Waiting[:min(len(p.Waiting), maxListed)] {
		page.Lines(render.Attention.With("%s cannot begin: %s", p.Waiting[i].Cluster, p.Waiting[i].Why))
	}
	if more := len(p.Waiting) - maxListed; more > 0 {
		page.Lines(render.Attention.With("%s more cannot begin: -o json has all", render.Count(more, "cluster")))
	}
}

func atMost(is bool) string {
	if is {
		return "at most "
	}
	return ""
}
