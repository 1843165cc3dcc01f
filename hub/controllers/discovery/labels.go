package discovery

import (
	"encoding/json"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// annotationCopied stores which labels were copied with which value, to tell them from
// labels that users set.
const annotationCopied = "pelotech.ot/copied-labels"

// toolLabelPrefixes are prefixes of labels by which deployment tools find their
// objects. Copying them would let such a tool prune a MemberCluster that it does not
// know.
var toolLabelPrefixes = []string{
	"app.kubernetes.io/", "helm.sh/", "argocd.argoproj.io/",
	"kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/", "objectset.rio.cattle.io/",
}

func isCopiedLabel(key string) bool {
	if key == v1alpha1.LabelMember || key == v1alpha1.LabelDiscovered {
		return false
	}
	for _, prefix := range toolLabelPrefixes {
		if strings.HasPrefix(key, prefix) {
			return false
		}
	}
	return true
}

// mergeLabels merges the origin's labels into those of a MemberCluster. record has the
// labels copied before, next those copied now. Labels that users changed, removed or
// set themselves are left alone.
func mergeLabels(current, record, origin map[string]string) (labels, next map[string]string) {
	labels, next = maps.Clone(current), map[string]string{}
	if labels == nil {
		labels = map[string]string{}
	}
	for key, originValue := range origin {
		if !isCopiedLabel(key) {
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
		if _, ok := origin[key]; ok && isCopiedLabel(key) {
			continue
		}
		if value, ok := current[key]; ok && value == copiedValue {
			delete(labels, key)
		}
	}
	return labels, next
}

// copyLabels copies the origin's labels and reports whether anything changed.
func copyLabels(member *v1alpha1.MemberCluster, origin map[string]string) bool {
	record := map[string]string{}
	text := member.Annotations[annotationCopied]
	// If the annotation is unreadable, all labels count as set by users and are kept.
	_ = json.Unmarshal([]byte(text), &record)
	labels, next := mergeLabels(member.Labels, record, origin)
	encoded, err := json.Marshal(next)
	if err != nil {
		return false // a map of strings always encodes
	}
	if maps.Equal(labels, member.Labels) && (string(encoded) == text || len(next) == 0 && text == "") {
		return false
	}
	member.Labels = labels
	metav1.SetMetaDataAnnotation(&member.ObjectMeta, annotationCopied, string(encoded))
	return true
}
