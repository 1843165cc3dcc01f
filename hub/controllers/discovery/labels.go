package discovery

import (
	"encoding/json"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberlabels"
)

// mergeLabels merges the origin's labels into those of a MemberCluster. record has the
// labels copied before, next those copied now. Labels that users changed, removed or
// set themselves are left alone. One that was copied before the rules excluded it stays
// as it is, whatever the origin does: overrides and waves may select by it.
func (r Rules) mergeLabels(current, record, origin map[string]string) (labels, next map[string]string) {
	labels, next = maps.Clone(current), map[string]string{}
	if labels == nil {
		labels = map[string]string{}
	}
	for key, originValue := range origin {
		if !r.mayCopyLabel(key) {
			continue
		}
		value, exists := current[key]
		copiedValue, wasCopied := record[key]
		switch {
		case wasCopied && exists && value == copiedValue, !wasCopied && !exists:
			labels[key], next[key] = originValue, originValue
		case wasCopied:
			next[key] = copiedValue
		}
	}
	for key, copiedValue := range record {
		if _, ok := origin[key]; ok && r.mayCopyLabel(key) {
			continue
		}
		if !r.mayCopyLabel(key) && !memberlabels.IsReserved(key) {
			next[key] = copiedValue
			continue
		}
		if value, ok := current[key]; ok && value == copiedValue {
			delete(labels, key)
		}
	}
	return labels, next
}

// copyLabels copies the origin's labels and reports whether anything changed.
func (r Rules) copyLabels(member *v1alpha1.MemberCluster, origin map[string]string) bool {
	record := map[string]string{}
	text := member.Annotations[memberlabels.AnnotationCopied]
	// If the annotation is unreadable, all labels count as set by users and are kept.
	_ = json.Unmarshal([]byte(text), &record)
	labels, next := r.mergeLabels(member.Labels, record, origin)
	encoded, err := json.Marshal(next)
	if err != nil {
		return false // a map of strings always encodes
	}
	if maps.Equal(labels, member.Labels) && (string(encoded) == text || len(next) == 0 && text == "") {
		return false
	}
	member.Labels = labels
	metav1.SetMetaDataAnnotation(&member.ObjectMeta, memberlabels.AnnotationCopied, string(encoded))
	return true
}
