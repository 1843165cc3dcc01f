package trigger

import (
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Changed lets updates through that change the UID, the generation, the deletion or
// the summary of an object: other writes of its status are no reason to reconcile.
func Changed[T client.Object](summarize func(T) string) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(T)
		after, okAfter := e.ObjectNew.(T)
		return !okBefore || !okAfter || before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
			before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() || summarize(before) != summarize(after)
	}}
}

// SummaryChanged lets updates through that change the UID or the summary of an object, whatever else they
// change.
func SummaryChanged[T client.Object, S comparable](summarize func(T) S) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(T)
		after, okAfter := e.ObjectNew.(T)
		return !okBefore || !okAfter || before.GetUID() != after.GetUID() || summarize(before) != summarize(after)
	}}
}

// Requests returns requests for cluster-scoped objects by name.
func Requests(names ...string) []reconcile.Request {
	list := make([]reconcile.Request, len(names))
	for i, name := range names {
		list[i].NamespacedName = types.NamespacedName{Name: name}
	}
	return list
}
