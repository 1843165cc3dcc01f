package v1alpha1

import (
	"fmt"
	"hash/fnv"
	"strconv"
)

// Revision is the hash of what decides which bytes an image consists of and
// where they are stored. A spec that hashes alike needs no new download.
func (s *VMDiskImageSpec) Revision() string {
	h := fnv.New64a()
	for _, field := range []string{
		string(s.SourceType), s.URL, s.Checksum, s.StorageClass,
		strconv.FormatInt(s.DiskSize.Value(), 10),
	} {
		_, _ = fmt.Fprintf(h, "%d:%s;", len(field), field)
	}
	return strconv.FormatUint(h.Sum64(), 36)
}
