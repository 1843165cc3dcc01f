package trigger_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/trigger"
)

// An event without delay answers those that wait, too.
func TestAfterIsBroughtForward(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request]("test")
	defer queue.ShutDown()
	handler := trigger.After(func(o client.Object) (reconcile.Request, time.Duration) {
		if o.GetName() == "page" {
			return trigger.Requests("member")[0], time.Hour
		}
		return trigger.Requests("member")[0], 0
	})
	named := func(name string) client.Object { return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	handler.Create(t.Context(), event.CreateEvent{Object: named("page")}, queue)
	handler.Delete(t.Context(), event.DeleteEvent{Object: named("page")}, queue)
	assert.Zero(t, queue.Len(), "nothing is due")
	handler.Update(t.Context(), event.UpdateEvent{ObjectOld: named("page"), ObjectNew: named("root")}, queue)
	got, _ := queue.Get()
	queue.Done(got)
	assert.Equal(t, trigger.Requests("member")[0], got)
	assert.Zero(t, queue.Len())
}
