// Package kstatus sets the conditions by which kubectl wait, Flux, Helm 4 and Argo CD tell
// a finished object from one that is still in progress. They read Ready, Reconciling and
// Stalled as sigs.k8s.io/cli-utils/pkg/kstatus does.
package kstatus

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Writer sets the conditions of an object that has one reason and message for all of them.
type Writer struct {
	Conditions      *[]metav1.Condition
	Reason, Message string
	Generation      int64
	Now             time.Time
}

// Set sets a condition to True or False.
func (w Writer) Set(conditionType string, holds bool) {
	meta.SetStatusCondition(w.Conditions, NewCondition(conditionType, holds, w.Reason, w.Message, w.Generation, w.Now))
}

// SetReady sets Ready, Reconciling and Stalled, as SetConditions.
func (w Writer) SetReady(ready, stalled bool) {
	SetConditions(w.Conditions, NewCondition(v1alpha1.ConditionReady, ready, w.Reason, w.Message, w.Generation, w.Now), stalled)
}

// SetConditions sets Ready as given, whatever its type, and Reconciling and Stalled with
// its reason and message. stalled says that only a person's action helps an object that is
// not ready.
//
// Invariant: exactly one of the three is True. Without one, kstatus takes an object for
// finished; with two, the first in the list counts.
func SetConditions(conditions *[]metav1.Condition, ready metav1.Condition, stalled bool) {
	isReady := ready.Status == metav1.ConditionTrue
	for _, condition := range []struct {
		name   string
		status metav1.ConditionStatus
	}{
		{v1alpha1.ConditionReady, ready.Status},
		{v1alpha1.ConditionReconciling, StatusOf(!isReady && !stalled)},
		{v1alpha1.ConditionStalled, StatusOf(!isReady && stalled)},
	} {
		c := ready
		c.Type, c.Status = condition.name, condition.status
		meta.SetStatusCondition(conditions, c)
	}
}

// NewCondition returns a condition that is True or False.
func NewCondition(conditionType string, holds bool, reason, message string, generation int64, now time.Time) metav1.Condition {
	return metav1.Condition{
		Type: conditionType, Status: StatusOf(holds), Reason: reason, Message: message,
		ObservedGeneration: generation, LastTransitionTime: storedtime.Truncate(now),
	}
}

// StatusOf returns True or False.
func StatusOf(holds bool) metav1.ConditionStatus {
	if holds {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}
