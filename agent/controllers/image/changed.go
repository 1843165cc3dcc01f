package image

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// holdChangedPredicate lets those events of machines through that change what they hold. Each
// of them writes its status many times on its way, and an image counts all that
// hold it whenever it is looked at.
func holdChangedPredicate() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.VirtualMachine), e.ObjectNew.(*v1alpha1.VirtualMachine)
		return before.UID != after.UID ||
			before.ImageNamespacedName() != after.ImageNamespacedName() ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			!equality.Semantic.DeepEqual(before.Status.Pinned, after.Status.Pinned)
	}}
}
