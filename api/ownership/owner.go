// Package ownership tells who keeps a field of an object as it is, since a GitOps controller
// would write its own value again. Untrack is for objects that have no such fields.
package ownership

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// FieldManager is the name under which kubectl ot writes.
const FieldManager = "kubectl-ot"

// controllers are the field managers of GitOps controllers.
var controllers = []struct{ manager, name string }{
	{"kustomize-controller", "Flux"},
	{"helm-controller", "Flux"},
	{"argocd-controller", "Argo CD"},
	{"argocd-application-controller", "Argo CD"},
	{"fleetagent", "Rancher Fleet"},
	{"applier", "Config Sync"},
	{"configsync", "Config Sync"},
}

// Owner is a GitOps controller that has one of the fields that a command would change.
type Owner struct {
	// Controller is its product, as in Flux; Manager its name as a field manager.
	Controller string `json:"controller"`
	Manager    string `json:"manager"`
	// Source is what it applies, as in Kustomization flux-system/images; empty where the
	// object does not say.
	Source string `json:"source,omitempty"`
	// Field that it has, as in spec.version.
	Field string `json:"field"`
}

func (o *Owner) String() string {
	if o.Source == "" {
		return fmt.Sprintf("%s (field manager %s)", o.Controller, o.Manager)
	}
	return fmt.Sprintf("%s (%s)", o.Controller, o.Source)
}

// Refusal says why a command does not change the field, and what to do.
func (o *Owner) Refusal(object string) error {
	return fmt.Errorf("%s owns %s of %s and would write its own value again: change it in Git, or add --force-conflicts", o, o.Field, object)
}

// FindOwner returns the GitOps controller that has one of these fields, or a part of it, as in
// spec.version; nil for none.
func FindOwner(object metav1.Object, fields ...string) *Owner {
	for _, entry := range object.GetManagedFields() {
		for _, c := range controllers {
			if entry.Manager != c.manager || entry.Subresource != "" {
				continue
			}
			if field := ownedField(entry, fields); field != "" {
				return &Owner{Controller: c.name, Manager: entry.Manager, Source: sourceOf(object), Field: field}
			}
		}
	}
	// Argo CD may apply under the name of kubectl: then only its mark tells.
	if id := object.GetAnnotations()["argocd.argoproj.io/tracking-id"]; id != "" {
		for _, entry := range object.GetManagedFields() {
			if field := ownedField(entry, fields); field != "" && entry.Manager != FieldManager {
				return &Owner{Controller: "Argo CD", Manager: entry.Manager, Source: sourceOf(object), Field: field}
			}
		}
	}
	return nil
}

func ownedField(entry metav1.ManagedFieldsEntry, fields []string) string {
	set, err := fieldSet(entry)
	if err != nil {
		return ""
	}
	for _, field := range fields {
		found := false
		prefix := fieldPath(field)
		set.Iterate(func(p fieldpath.Path) {
			found = found || len(p) >= len(prefix) && p[:len(prefix)].Equals(prefix)
		})
		if found {
			return field
		}
	}
	return ""
}

func fieldSet(entry metav1.ManagedFieldsEntry) (*fieldpath.Set, error) {
	set := &fieldpath.Set{}
	if entry.FieldsV1 == nil {
		return set, nil
	}
	if err := set.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())); err != nil {
		return nil, fmt.Errorf("reading the fields of manager %s: %w", entry.Manager, err)
	}
	return set, nil
}

func fieldPath(field string) (path fieldpath.Path) {
	for name := range strings.SplitSeq(field, ".") {
		path = append(path, fieldpath.PathElement{FieldName: &name})
	}
	return path
}

// ConflictsWithItself reports whether an apply conflicts with nobody but FieldManager: what other
// verbs have patched, as the way back to a version does, counts as of another manager.
func ConflictsWithItself(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	own := false
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict || !strings.HasPrefix(cause.Message, fmt.Sprintf("conflict with %q", FieldManager)) {
			return false
		}
		own = true
	}
	return own
}

// IsApplied reports whether FieldManager has applied a field, or a part of it. What an apply
// leaves out of these is removed.
func IsApplied(object metav1.Object, field string) bool {
	return slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return isOwnApply(entry) && ownedField(entry, []string{field}) != ""
	})
}

// OtherOwners returns who else has a field, or a part of it: an apply that leaves it out does not
// remove it.
func OtherOwners(object metav1.Object, field string) (managers []string) {
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource == "" && !isOwnApply(entry) && ownedField(entry, []string{field}) != "" && !slices.Contains(managers, entry.Manager) {
			managers = append(managers, entry.Manager)
		}
	}
	return managers
}

func isOwnApply(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == FieldManager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == ""
}

// sourceOf names what a GitOps controller made the object from.
func sourceOf(object metav1.Object) string {
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	named := func(kind, prefix string) string {
		if name := labels[prefix+"/name"]; name != "" {
			return kind + " " + labels[prefix+"/namespace"] + "/" + name
		}
		return ""
	}
	if source := named("Kustomization", "kustomize.toolkit.fluxcd.io"); source != "" {
		return source
	}
	if source := named("HelmRelease", "helm.toolkit.fluxcd.io"); source != "" {
		return source
	}
	if id := annotations["argocd.argoproj.io/tracking-id"]; id != "" {
		application, _, _ := strings.Cut(id, ":")
		return "Application " + application
	}
	return ""
}

// Untrack has the next update of an object drop its managed fields. The API server keeps none
// from then on, until somebody applies the object. It is for objects that one program writes
// whole, as those of mailboxes: managed fields double what a root of many pages costs an API
// server, and pass through every watch.
func Untrack(object metav1.Object) {
	object.SetManagedFields([]metav1.ManagedFieldsEntry{{}})
}
