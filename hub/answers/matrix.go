package answers

import (
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// VersionRows returns the rows of a matrix of FleetDiskImages, those of some names, or all
// for none: their versions, the current one first.
func VersionRows(images []v1alpha1.FleetDiskImage, names []string) (rows []readapi.MatrixRow) {
	sorted := make([]*v1alpha1.FleetDiskImage, 0, len(images))
	for i := range images {
		if len(names) == 0 || slices.Contains(names, images[i].Name) {
			sorted = append(sorted, &images[i])
		}
	}
	slices.SortFunc(sorted, func(a, b *v1alpha1.FleetDiskImage) int { return strings.Compare(a.Name, b.Name) })
	for _, img := range sorted {
		current := rollout.CurrentImage(img)
		rows = append(rows, readapi.MatrixRow{Image: img.Name, Version: img.Spec.Version, Current: true, Namespace: current.Namespace, Name: current.Name})
		for _, v := range img.Status.Versions {
			if v.Image != current.Name || v.Namespace != current.Namespace {
				rows = append(rows, readapi.MatrixRow{Image: img.Name, Version: v.Version, Namespace: v.Namespace, Name: v.Image})
			}
		}
	}
	return rows
}

// MarkVersions adds to the cells of FleetDiskImages what only these know: where a version
// will come, and where one is behind.
func MarkVersions(rows []readapi.MatrixRow, cells []byte, images []v1alpha1.FleetDiskImage, columns []*v1alpha1.MemberCluster) {
	byName := make(map[string]*v1alpha1.FleetDiskImage, len(images))
	for i := range images {
		byName[images[i].Name] = &images[i]
	}
	current := -1 // row of the current version
	for row := range rows {
		if rows[row].Current {
			current = row
			markPlanned(byName[rows[row].Image], cells[row*len(columns):][:len(columns)], columns)
			continue
		}
		for column := range columns {
			newest, at := readapi.Cell(cells[current*len(columns)+column]), row*len(columns)+column
			isWanted := newest.State() != readapi.CellAbsent && newest.State() != readapi.CellReady && newest.State() != readapi.CellUnknown
			if isWanted && readapi.Cell(cells[at]).State() == readapi.CellReady {
				cells[at] |= byte(readapi.CellBehind)
			}
		}
	}
}

// markPlanned marks the clusters that get the current version and do not have it yet.
func markPlanned(img *v1alpha1.FleetDiskImage, cells []byte, columns []*v1alpha1.MemberCluster) {
	if img == nil {
		return
	}
	matches, err := rollout.PlacementMatcher(&img.Spec.Placement)
	if err != nil {
		return // the rollout says so
	}
	for column, m := range columns {
		if cells[column] == byte(readapi.CellAbsent) && matches(m.Name, m.Labels) {
			cells[column] = byte(readapi.CellPlanned)
		}
	}
}
