package answers

import (
	"maps"
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

// MatrixColumns returns the columns of a matrix. Unknown is why each may have more than is
// known, and group the key of the label whose values group them.
func MatrixColumns(members []*v1alpha1.MemberCluster, unknown []string, group string) []readapi.MatrixColumn {
	columns := make([]readapi.MatrixColumn, len(members))
	for i, m := range members {
		state, _ := StateOfMember(m)
		columns[i] = readapi.MatrixColumn{Cluster: m.Name, Unknown: unknown[i], State: state, SilentSince: m.Status.SilentSince}
		if group != "" {
			columns[i].Group = m.Labels[group]
		}
	}
	return columns
}

// GroupingLabels returns the keys of labels that group members: more than one value, counting
// none as one, and fewer values than members.
func GroupingLabels(members []*v1alpha1.MemberCluster) (keys []string) {
	values, carriers := map[string]map[string]bool{}, map[string]int{}
	for _, m := range members {
		for key, value := range m.Labels {
			if values[key] == nil {
				values[key] = map[string]bool{}
			}
			values[key][value] = true
			carriers[key]++
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		groups := len(values[key])
		if carriers[key] < len(members) {
			groups++
		}
		if groups > 1 && groups < len(members) && len(keys) < readapi.MaxMatrixLabels {
			keys = append(keys, key)
		}
	}
	return keys
}
