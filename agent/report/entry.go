package report

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// How many bytes of a message are reported: of an image's, and of a prune's.
const (
	maxMessageBytes = 1024
	maxPruneMessage = 512
)

// NewReportedImage is what is reported of a VMDiskImage, but for what became of the plan's
// wish for it.
func NewReportedImage(img *v1alpha1.VMDiskImage) v1alpha1.ReportedImage {
	st := &img.Status
	out := v1alpha1.ReportedImage{
		Namespace:         img.Namespace,
		Name:              img.Name,
		UID:               img.UID,
		Origin:            imageOrigin(img),
		Source:            DescribeSource(&img.Spec),
		Revision:          st.Revision,
		Phase:             st.Phase,
		Reason:            st.Reason,
		Message:           truncateText(st.Message, maxMessageBytes),
		References:        st.References.Count,
		UnreferencedSince: st.References.UnreferencedSince,
		DownloadBytes:     st.BytesTotal,
		Attempts:          st.Attempts,
	}
	if st.Prune != nil {
		out.Prune = &v1alpha1.ReportedPrune{PruneStatus: *st.Prune.DeepCopy(), ImageUID: img.UID}
		out.Prune.Message = truncateText(out.Prune.Message, maxPruneMessage)
	}
	if st.Serving != nil {
		out.ServingRevision = st.Serving.Revision
	}
	for i := range st.Revisions {
		e := &st.Revisions[i]
		if e.Outcome != v1alpha1.OutcomeSucceeded || e.Attempt > e.AttemptEnded {
			continue
		}
		out.Bytes += img.Spec.DiskSize.Value()
		if e.Revision == out.Revision {
			out.SyncedAt = e.ImportedAt
		}
	}
	return out
}

// imageOrigin says who has made an image. The plan's label counts before the template's
// annotation: people may hand over to the plan what was made for a machine.
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

// DescribeSource is what an image is downloaded from, in one text: sourceType, url and
// checksum, as far as there are any.
func DescribeSource(spec *v1alpha1.VMDiskImageSpec) string {
	text := string(spec.SourceType)
	for _, more := range []string{spec.URL, spec.Checksum} {
		if more != "" {
			text += " " + more
		}
	}
	return text
}

// truncateText leaves no half of a character.
func truncateText(text string, most int) string {
	text = strings.ToValidUTF8(text, "�")
	if len(text) <= most {
		return text
	}
	const dots = "…"
	end := most - len(dots)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + dots
}

// digestImage is the digest of one reported image, and how many bytes it takes.
func digestImage(img *v1alpha1.ReportedImage) (digest [sha256.Size]byte, size int) {
	text, err := json.Marshal(img)
	if err != nil {
		panic(err) // strings, numbers and times: what cannot be written is a fault of the type
	}
	return sha256.Sum256(text), len(text) + 1
}

// DigestPage tells the contents of pages apart.
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
