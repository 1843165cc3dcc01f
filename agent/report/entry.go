package report

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Bounds of the messages of images and prunes.
const (
	maxMessageBytes      = 1024
	maxPruneMessageBytes = 512
)

// Bounds of the holders of an image, as in the schema.
const (
	maxHolders     = 5
	maxHolderBytes = 384
)

// NewReportedImage returns what is reported of a VMDiskImage, without the result of its
// plan item.
func NewReportedImage(img *v1alpha1.VMDiskImage) v1alpha1.ReportedImage {
	status := &img.Status
	out := v1alpha1.ReportedImage{
		Namespace:         img.Namespace,
		Name:              img.Name,
		UID:               img.UID,
		Origin:            imageOrigin(img),
		Source:            DescribeSource(&img.Spec),
		Revision:          status.Revision,
		Phase:             status.Phase,
		Reason:            status.Reason,
		Message:           v1alpha1.SanitizeText(status.Message, maxMessageBytes),
		OpensAt:           status.OpensAt,
		Stalled:           meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionStalled),
		References:        status.References.Count,
		UnreferencedSince: status.References.UnreferencedSince,
		DownloadBytes:     status.BytesTotal,
		Attempts:          status.Attempts,
		Retry:             status.ObservedPlanRetry,
	}
	for _, holder := range status.References.Holders[:min(len(status.References.Holders), maxHolders)] {
		out.Holders = append(out.Holders, v1alpha1.SanitizeText(holder, maxHolderBytes))
	}
	if status.Prune != nil {
		out.Prune = &v1alpha1.ReportedPrune{PruneStatus: *status.Prune.DeepCopy(), ImageUID: img.UID}
		out.Prune.Message = v1alpha1.SanitizeText(out.Prune.Message, maxPruneMessageBytes)
	}
	if status.Serving != nil {
		out.ServingRevision = status.Serving.Revision
	}
	for i := range status.Revisions {
		revision := &status.Revisions[i]
		if revision.Outcome != v1alpha1.OutcomeSucceeded || revision.Attempt > revision.AttemptEnded {
			continue
		}
		out.Bytes += img.Spec.DiskSize.Value()
		if revision.Revision == out.Revision {
			out.SyncedAt = revision.ImportedAt
		}
	}
	return out
}

// imageOrigin returns who created an image. The plan's label wins over the template's
// annotation: people may hand an image that was created for a VirtualMachine to the plan.
func imageOrigin(img *v1alpha1.VMDiskImage) v1alpha1.ImageOrigin {
	switch {
	case image.IsPlanned(img):
		return v1alpha1.OriginPlan
	case img.Annotations[v1alpha1.AnnotationCreatedFor] != "":
		return v1alpha1.OriginTemplate
	default:
		return ""
	}
}

// DescribeSource returns sourceType, url and checksum in one text, without the secrets of the url.
func DescribeSource(spec *v1alpha1.VMDiskImageSpec) string {
	text := string(spec.SourceType)
	dataSource := ""
	if d := spec.DataSource; d != nil {
		dataSource = strings.TrimPrefix(d.Namespace+"/"+d.Name, "/")
	}
	for _, part := range []string{spec.URL, spec.Checksum, dataSource} {
		if part != "" {
			text += " " + part
		}
	}
	return v1alpha1.RedactSource(text)
}

// digestImage returns the digest of a reported image, and its size in bytes.
func digestImage(img *v1alpha1.ReportedImage) (digest [sha256.Size]byte, size int) {
	text, err := json.Marshal(img)
	if err != nil {
		panic(err) // the type holds only strings, numbers and times
	}
	return sha256.Sum256(text), len(text) + 1
}

// DigestPage returns the digest of the images of a page.
func DigestPage(images []v1alpha1.ReportedImage) string {
	digests := make([][sha256.Size]byte, len(images))
	for i := range images {
		digests[i], _ = digestImage(&images[i])
	}
	return combineDigests(digests)
}

func combineDigests(images [][sha256.Size]byte) string {
	h := sha256.New()
	for i := range images {
		_, _ = h.Write(images[i][:])
	}
	return hex.EncodeToString(h.Sum(nil))
}
