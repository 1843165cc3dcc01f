package v1alpha1

import (
	"fmt"
	"hash/fnv"
	"strconv"
)

// Revision returns the hash of the fields that decide which bytes an image has and
// where they are stored. Specs with the same hash need no new download.
//
// Invariant: a stored spec never gets another hash, or an upgrade downloads it again: a new
// field must not be hashed where it has no value. How the bytes are downloaded (secretRef,
// certConfigMap, extraHeaders, secretExtraHeaders, pullMethod) is not hashed.
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
