package ledger

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ShouldCreateDataVolume reports whether a slot's DataVolume is to be created
// (roll forward).
//
// Invariant: an attempt that was started is never started again; the image
// decides what became of its DataVolume.
func ShouldCreateDataVolume(slot v1alpha1.Slot, f SlotFacts) bool {
	return !slot.Ended && !f.hasEnded() && !f.Started && !f.DataVolumeExists
}

// DataVolumeKey is a slot's DataVolume as namespace/name.
func DataVolumeKey(s v1alpha1.Slot) string { return s.Image.Namespace + "/" + s.DataVolume }

const maxReadablePrefix = 30

// DataVolumeName names the DataVolume and the claim of an attempt. It begins
// with the image's name, cut to maxReadablePrefix; image UID and attempt make it
// unique. It has at most 53 characters, so that the names that CDI and Kubernetes
// derive from it fit a label.
func DataVolumeName(image v1alpha1.ImageKey, attempt int32) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(image.UID))
	name := strings.ReplaceAll(image.Name, ".", "-")
	if len(name) > maxReadablePrefix {
		name = name[:maxReadablePrefix]
	}
	name = strings.TrimRight(name, "-")
	return fmt.Sprintf("%s-%s-%d", name, strconv.FormatUint(h.Sum64(), 36), attempt)
}

// AttemptOf returns the attempt of an image whose DataVolume and claim have a name.
func AttemptOf(image v1alpha1.ImageKey, name string) (attempt int32, found bool) {
	n, err := strconv.ParseInt(name[strings.LastIndex(name, "-")+1:], 10, 32)
	if err != nil || n < 1 || DataVolumeName(image, int32(n)) != name {
		return 0, false
	}
	return int32(n), true
}
