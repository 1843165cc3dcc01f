package prune

import (
	"cmp"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Limits of texts in statuses and pages.
const (
	maxStatusLength  = 2048
	maxReasonLength  = 64
	maxMessageLength = 512
	// maxSummaryLength bounds the message of a TargetSummary.
	maxSummaryLength = 256
	maxListedNames   = 5
)

func formatStatus(format string, args ...any) string {
	return v1alpha1.SanitizeText(fmt.Sprintf(format, args...), maxStatusLength)
}

func toStoredTimeOrNil(t *metav1.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return ptr.To(storedtime.Truncate(t.Time))
}

func pluralize(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func joinFirst(names []string) string { return v1alpha1.JoinFirst(names, maxListedNames, len(names)) }

// formatBytes returns a size with a binary unit, such as 1.5 GiB.
func formatBytes(bytes int64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes), ""
	for _, unit = range units {
		if value /= 1 << 10; value < 1<<10 {
			break
		}
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + unit
}

// formatPhase returns an image's phase with its reason.
func formatPhase(img *v1alpha1.ReportedImage) string {
	phase := cmp.Or(string(img.Phase), "no phase yet")
	if img.Reason != "" {
		phase += " (" + string(img.Reason) + ")"
	}
	return v1alpha1.SanitizeText(phase, maxMessageLength)
}
