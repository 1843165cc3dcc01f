// Package approval says what an approval of a wave reaches, and what has changed since the
// version before: kubectl ot rollout approve and the read API say the same.
package approval

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxShownValue bounds the value of a field that is shown.
const maxShownValue = 200

// IsRequired reports whether a wave needs approval.
func IsRequired(img *v1alpha1.FleetDiskImage, wave string) bool {
	w := findWave(img, wave)
	return w != nil && w.RequireApproval
}

func findWave(img *v1alpha1.FleetDiskImage, wave string) *v1alpha1.Wave {
	for i := range img.Spec.Rollout.Waves {
		if w := &img.Spec.Rollout.Waves[i]; w.Name == wave {
			return w
		}
	}
	return nil
}

// FindApproval returns the approval of a version for a wave; nil for none.
func FindApproval(img *v1alpha1.FleetDiskImage, wave, version string) *v1alpha1.Approval {
	for i := range img.Spec.Approvals {
		if a := &img.Spec.Approvals[i]; a.Wave == wave && a.Version == version {
			return a
		}
	}
	return nil
}

// CountStarting returns how many clusters of a wave start by its approval, and how many of
// these are offline.
func CountStarting(img *v1alpha1.FleetDiskImage, wave string) (clusters, offline int32) {
	for i := range img.Status.Waves {
		if w := &img.Status.Waves[i]; w.Name == wave {
			clusters += w.Clusters.ToApply + w.Clusters.Deferred
			offline += w.Clusters.Deferred
		}
	}
	return clusters, offline
}

// AtATime returns how many clusters of a wave import together, as in 25%; empty: all.
func AtATime(img *v1alpha1.FleetDiskImage, wave string) string {
	limit := img.Spec.Rollout.MaxConcurrency
	if w := findWave(img, wave); w != nil && w.MaxConcurrency != nil {
		limit = w.MaxConcurrency
	}
	if limit == nil {
		return ""
	}
	return limit.String()
}

// MinSuccessTime returns how long a wave must have been done before the next one starts.
func MinSuccessTime(img *v1alpha1.FleetDiskImage, wave string) time.Duration {
	wait := img.Spec.Rollout.MinSuccessTime
	if w := findWave(img, wave); w != nil && w.MinSuccessTime != nil {
		wait = w.MinSuccessTime
	}
	if wait == nil {
		return 0
	}
	return wait.Duration
}

// ChangesSinceVersionBefore returns what differs from the version before; nil where there was
// none.
func ChangesSinceVersionBefore(img *v1alpha1.FleetDiskImage) *readapi.VersionChanges {
	for i := range img.Status.Versions {
		v := &img.Status.Versions[i]
		switch {
		case v.Version == img.Spec.Version:
		case v.Template == nil:
			return &readapi.VersionChanges{Since: v.Version, NotRecorded: WhyNotRecorded(v)}
		default:
			return &readapi.VersionChanges{Since: v.Version, Fields: Diff(v.Template, img.Spec.Template.SourceFields())}
		}
	}
	return nil
}

// WhyNotRecorded says why the template of a version is not recorded.
func WhyNotRecorded(v *v1alpha1.VersionStatus) string {
	if v.TemplateOmitted == "" {
		return "the hub was older then"
	}
	return v.TemplateOmitted
}

// Diff returns how a template differs from the one before. Credentials are left out.
func Diff(before, after *v1alpha1.VMDiskImageSpec) (changes []readapi.Change) {
	from, to := fieldTexts(before), fieldTexts(after)
	for _, field := range before.DiffersIn(after) {
		changes = append(changes, readapi.Change{Field: field, From: from[field], To: to[field]})
	}
	return changes
}

func fieldTexts(spec *v1alpha1.VMDiskImageSpec) map[string]string {
	var fields map[string]any
	data, err := json.Marshal(spec)
	if err != nil || json.Unmarshal(data, &fields) != nil {
		return nil // the type holds only strings, numbers and quantities
	}
	texts := map[string]string{}
	for name, value := range fields {
		text := fmt.Sprint(value)
		if name == "url" {
			text = v1alpha1.RedactURL(text)
		}
		if name == "extraHeaders" {
			text = "(not shown)"
		}
		texts[name] = v1alpha1.SanitizeText(text, maxShownValue)
	}
	return texts
}
