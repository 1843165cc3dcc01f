package v1alpha1

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
)

// Revision returns the hash of the fields that decide which bytes an image has and
// where they are stored. Specs with the same hash need no new download.
//
// Invariant: a stored spec never gets another hash, or an upgrade downloads it again: a new
// field must not be hashed where it has no value. How the bytes are downloaded (secretRef,
// certConfigMap, extraHeaders, secretExtraHeaders, pullMethod) is not hashed, nor what is made
// of them beside (snapshotClass, publish, defaults).
func (s *VMDiskImageSpec) Revision() string {
	h := fnv.New64a()
	for _, field := range []string{
		string(s.SourceType), s.URL, s.Checksum, s.StorageClass,
		strconv.FormatInt(s.DiskSize.Value(), 10),
	} {
		writeField(h, field)
	}
	if s.Architecture != "" {
		writeField(h, "architecture="+string(s.Architecture))
	}
	if d := s.DataSource; d != nil {
		writeField(h, "dataSource="+d.Namespace+"/"+d.Name)
	}
	return strconv.FormatUint(h.Sum64(), 36)
}

// SourceDigest returns the hash of the fields of SourceFields: of the revision, and of how its
// bytes are downloaded and kept. A fleet's clusters get a spec with another digest by waves, and
// approvals name it: nobody can write another source that has the same one.
func (s *VMDiskImageSpec) SourceDigest() string {
	h := sha256.New()
	for _, field := range []struct{ name, value string }{
		{"sourceType", string(s.SourceType)}, {"url", s.URL}, {"checksum", s.Checksum}, {"storageClass", s.StorageClass},
		{"diskSize", strconv.FormatInt(s.DiskSize.Value(), 10)}, {"architecture", string(s.Architecture)},
		{"snapshotClass", s.SnapshotClass}, {"secretRef", s.SecretRef}, {"certConfigMap", s.CertConfigMap},
		{"pullMethod", string(s.PullMethod)},
	} {
		if field.value != "" {
			writeField(h, field.name)
			writeField(h, field.value)
		}
	}
	if d := s.DataSource; d != nil {
		writeField(h, "dataSource")
		writeField(h, d.Namespace)
		writeField(h, d.Name)
	}
	for _, header := range s.ExtraHeaders {
		writeField(h, "extraHeaders")
		writeField(h, header)
	}
	for _, secret := range s.SecretExtraHeaders {
		writeField(h, "secretExtraHeaders")
		writeField(h, secret)
	}
	return strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)[:20]))
}

func writeField(h io.Writer, field string) { _, _ = fmt.Fprintf(h, "%d:%s;", len(field), field) }
