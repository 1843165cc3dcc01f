// Package memberlabels decides which labels of a MemberCluster outlive it: budgets and waves
// go by labels, so a member that joins again without those that people gave it would get
// another budget, and a wave that nobody approved.
package memberlabels

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// AnnotationCopied of a MemberCluster says which labels the hub copied from its Secret or
// Cluster, with which value.
const AnnotationCopied = "pelotech.ot/copied-labels"

// AnnotationClusterUID of a MemberCluster from Cluster API is the UID of the Cluster that the
// hub created it for: another one may take its name.
const AnnotationClusterUID = "pelotech.ot/cluster-uid"

// OriginCluster is the value of v1alpha1.LabelDiscovered of members from Cluster API.
const OriginCluster = "cluster-api"

// toolPrefixes are of labels by which Helm, Argo CD, Flux and similar tools find their
// objects. With them, such a tool could prune a MemberCluster that it does not know.
var toolPrefixes = []string{
	"app.kubernetes.io/", "helm.sh/", "argocd.argoproj.io/",
	"kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/", "objectset.rio.cattle.io/",
}

// IsReserved reports whether the hub gives a label to no MemberCluster because another object
// has it.
func IsReserved(key string) bool {
	return key == v1alpha1.LabelMember || key == v1alpha1.LabelDiscovered ||
		slices.ContainsFunc(toolPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// outlivesMember reports whether a label may outlive a MemberCluster. The consent to install
// the agent does not: another cluster may join under the name.
func outlivesMember(key string) bool { return !IsReserved(key) && key != v1alpha1.LabelInstallAgent }

// Kept returns the labels that outlive a MemberCluster, which must have its managed fields:
// all but those that come again with their origin, that is with its Cluster or with the
// manifest that it was applied from.
func Kept(member *v1alpha1.MemberCluster) map[string]string {
	kept := maps.Clone(member.Labels)
	copied := map[string]string{}
	if member.Labels[v1alpha1.LabelDiscovered] == OriginCluster {
		_ = json.Unmarshal([]byte(member.Annotations[AnnotationCopied]), &copied) // unreadable: all are kept
	}
	applied := appliedLabels(&member.ObjectMeta)
	maps.DeleteFunc(kept, func(key, value string) bool {
		copiedValue, isCopied := copied[key]
		return !outlivesMember(key) || applied[key] || isCopied && copiedValue == value
	})
	return kept
}

// appliedLabels returns the labels of manifests that were applied, on the server's or the
// client's side.
func appliedLabels(object *metav1.ObjectMeta) map[string]bool {
	applied := map[string]bool{}
	for i := range object.ManagedFields {
		owner := &object.ManagedFields[i]
		if owner.Operation != metav1.ManagedFieldsOperationApply || owner.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels map[string]any `json:"f:labels"`
			} `json:"f:metadata"`
		}
		_ = json.Unmarshal(owner.FieldsV1.GetRawBytes(), &fields) // the API server wrote it
		for key := range fields.Metadata.Labels {
			applied[strings.TrimPrefix(key, "f:")] = true
		}
	}
	var manifest metav1.PartialObjectMetadata
	_ = json.Unmarshal([]byte(object.Annotations[lastAppliedAnnotation]), &manifest) // unreadable: nothing is
	for key := range manifest.Labels {
		applied[key] = true
	}
	return applied
}

// lastAppliedAnnotation is where kubectl apply without --server-side keeps the manifest.
const lastAppliedAnnotation = "kubectl.kubernetes.io/last-applied-configuration"
