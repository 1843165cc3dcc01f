package answers

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// ImageQuery is what an ImageList shows.
type ImageQuery struct {
	// Search is a part of a source.
	Search string
	// Sort is one of ImageOrders.
	Sort          string
	Descending    bool
	Offset, Limit int
}

// ListImages returns a page of the distinct images.
func ListImages(all []readapi.Image, q ImageQuery) (page []readapi.Image, total int) {
	matching := slices.DeleteFunc(slices.Clone(all), func(img readapi.Image) bool {
		return !strings.Contains(strings.ToLower(img.Source), strings.ToLower(q.Search))
	})
	slices.SortFunc(matching, q.compare)
	return PageOf(matching, q.Offset, q.Limit), len(matching)
}

// PageOf returns the items of a list from an offset on, up to limit.
func PageOf[T any](all []T, offset, limit int) []T {
	from := min(offset, len(all))
	return all[from : from+min(limit, len(all)-from)]
}

func (q *ImageQuery) compare(a, b readapi.Image) int {
	order := 0
	switch q.Sort {
	case readapi.ImagesByMembers:
		order = cmp.Compare(a.Members, b.Members)
	case readapi.ImagesByBytes:
		order = cmp.Compare(a.Bytes, b.Bytes)
	case readapi.ImagesByReferences:
		order = cmp.Compare(a.References, b.References)
	case readapi.ImagesByUnreferenced:
		if (a.UnreferencedSince == nil) != (b.UnreferencedSince == nil) {
			if a.UnreferencedSince == nil {
				return 1
			}
			return -1
		}
		if a.UnreferencedSince != nil {
			order = a.UnreferencedSince.Compare(b.UnreferencedSince.Time)
		}
	default:
		order = strings.Compare(a.Source, b.Source)
	}
	if q.Descending {
		order = -order
	}
	return cmp.Or(order, strings.Compare(a.Source, b.Source))
}

// FleetImageQuery is what a FleetImageList shows.
type FleetImageQuery struct {
	// Name is that of one FleetDiskImage, Search a part of names or versions.
	Name, Search  string
	Offset, Limit int
}

// SelectFleetImages returns a page of FleetDiskImages, by name.
func SelectFleetImages(all []v1alpha1.FleetDiskImage, q FleetImageQuery) (page []v1alpha1.FleetDiskImage, total int) {
	matching := slices.DeleteFunc(slices.Clone(all), func(img v1alpha1.FleetDiskImage) bool {
		text := img.Name + " " + img.Spec.Version
		for i := range img.Status.Versions {
			text += " " + img.Status.Versions[i].Version
		}
		return q.Name != "" && img.Name != q.Name || !strings.Contains(strings.ToLower(text), strings.ToLower(q.Search))
	})
	slices.SortFunc(matching, func(a, b v1alpha1.FleetDiskImage) int { return strings.Compare(a.Name, b.Name) })
	return PageOf(matching, q.Offset, q.Limit), len(matching)
}

// ImageCells are the versions of FleetDiskImages × clusters, as a Matrix has them.
type ImageCells struct {
	Rows    []readapi.MatrixRow
	Cells   []byte
	Columns []*v1alpha1.MemberCluster
	// Unknown is why each cluster may have more than is known.
	Unknown []string
}

func (c *ImageCells) at(row, column int) readapi.Cell {
	return readapi.Cell(c.Cells[row*len(c.Columns)+column])
}

// defaultKeepVersions is that of Retention.
const defaultKeepVersions = 2

// ListFleetImages returns FleetDiskImages with their versions, in the order of images.
func ListFleetImages(images []v1alpha1.FleetDiskImage, total int, cells *ImageCells) readapi.FleetImageList {
	list := readapi.FleetImageList{Images: []readapi.FleetImage{}, Total: total, Clusters: len(cells.Columns)}
	for _, reason := range cells.Unknown {
		if reason != "" {
			list.UnknownClusters++
		}
	}
	for i := range images {
		img := &images[i]
		f := readapi.FleetImage{Name: img.Name, Versions: []readapi.ImageVersion{}, KeepVersions: defaultKeepVersions}
		if r := img.Spec.Retention; r != nil {
			f.KeepVersions = cmp.Or(r.KeepVersions, f.KeepVersions)
			if r.KeepUnreferencedFor != nil {
				f.KeepUnreferencedFor = r.KeepUnreferencedFor.Duration.String()
			}
		}
		for row := range cells.Rows {
			if cells.Rows[row].Image == img.Name {
				v := cells.countVersion(img, row)
				v.Kept = len(f.Versions) < int(f.KeepVersions)
				f.Versions = append(f.Versions, v)
			}
		}
		list.Images = append(list.Images, f)
	}
	return list
}

func (c *ImageCells) countVersion(img *v1alpha1.FleetDiskImage, row int) readapi.ImageVersion {
	r := &c.Rows[row]
	v := readapi.ImageVersion{Version: r.Version, Current: r.Current, Namespace: r.Namespace, Image: r.Name, States: map[readapi.ImageState]int{}}
	for column := range c.Columns {
		cell := c.at(row, column)
		v.States[cell.ImageState()]++
		switch {
		case cell.Has(readapi.CellReferenced):
			v.Referenced++
		case cell.State() == readapi.CellReady:
			v.Unreferenced++
		}
		if cell.Has(readapi.CellStale) {
			v.Stale++
		}
	}
	template := &img.Spec.Template
	if !r.Current {
		template = nil
	}
	for i := range img.Status.Versions {
		if stored := &img.Status.Versions[i]; stored.Version == r.Version {
			v.Since = &stored.Since
			if template == nil {
				template = stored.Template
			}
		}
	}
	if template != nil {
		v.Source, v.DiskBytes = template.RedactedSource(), template.DiskSize.Value()
	}
	return v
}

// ImageClusterQuery is which clusters of a FleetDiskImage are shown.
type ImageClusterQuery struct {
	// Search is a part of a cluster's name.
	Search string
	// Version and State: those that have this version in this state. Without a Version, State
	// is of any of them.
	Version string
	State   readapi.ImageState
	// Unreferenced: those that have it ready, and no machine needs it.
	Unreferenced  bool
	Offset, Limit int
}

// SelectImageClusters returns a page of the columns that have, or are to have, a version.
func SelectImageClusters(c *ImageCells, q ImageClusterQuery) (page []int, total int) {
	var matching []int
	for column, m := range c.Columns {
		if strings.Contains(m.Name, strings.ToLower(q.Search)) && c.matches(column, q) {
			matching = append(matching, column)
		}
	}
	return PageOf(matching, q.Offset, q.Limit), len(matching)
}

func (c *ImageCells) matches(column int, q ImageClusterQuery) bool {
	for row := range c.Rows {
		if q.Version != "" && c.Rows[row].Version != q.Version {
			continue
		}
		cell := c.at(row, column)
		switch {
		case q.Unreferenced:
			if cell.State() == readapi.CellReady && !cell.Has(readapi.CellReferenced) {
				return true
			}
		case q.State != "":
			if cell.ImageState() == q.State {
				return true
			}
		case cell.State() != readapi.CellAbsent:
			return true
		}
	}
	return false
}

// ListImageClusters returns what some columns have, and are to have, of a FleetDiskImage. find
// returns an image as a cluster reports it; nil for none.
func ListImageClusters(img *v1alpha1.FleetDiskImage, c *ImageCells, columns []int, total int, find func(cluster, namespace, name string) (*v1alpha1.ReportedImage, error)) (readapi.ImageClusters, error) {
	list := readapi.ImageClusters{Clusters: []readapi.ImageCluster{}, Total: total}
	effectiveIn := effectiveFinder(img)
	for _, column := range columns {
		in := readapi.ImageCluster{Cluster: c.Columns[column].Name, Unknown: c.Unknown[column], Versions: []readapi.VersionInCluster{}, Effective: effectiveIn(c.Columns[column])}
		for row := range c.Rows {
			cell := c.at(row, column)
			if cell.State() == readapi.CellAbsent {
				continue
			}
			v := readapi.VersionInCluster{Version: c.Rows[row].Version, State: cell.ImageState(), Stale: cell.Has(readapi.CellStale)}
			var err error
			if v.Reported, err = find(in.Cluster, c.Rows[row].Namespace, c.Rows[row].Name); err != nil {
				return list, err
			}
			in.Versions = append(in.Versions, v)
		}
		list.Clusters = append(list.Clusters, in)
	}
	return list, nil
}

// effectiveFinder returns a function from cluster to desired image, nil where there is none or it
// cannot be read.
func effectiveFinder(img *v1alpha1.FleetDiskImage) func(*v1alpha1.MemberCluster) *readapi.EffectiveImage {
	overrides, overridesErr := override.Parse(img)
	isPlaced, placementErr := rollout.PlacementMatcher(&img.Spec.Placement)
	return func(m *v1alpha1.MemberCluster) *readapi.EffectiveImage {
		if overridesErr != nil || placementErr != nil || !isPlaced(m.Name, m.Labels) {
			return nil
		}
		return approval.DescribeEffective(overrides.For(m.Name, m.Labels))
	}
}
