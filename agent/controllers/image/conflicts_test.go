package image

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/trigger"
)

// TestLastingConflictBacksOff: a webhook may deny a request with the code of a conflict.
func TestLastingConflictBacksOff(t *testing.T) {
	p := newPruneFixture(t)
	denial := &apierrors.StatusError{ErrStatus: metav1.Status{Code: 409, Message: "admission webhook denied the request"}}
	accepting := p.Client
	p.Client = interceptor.NewClient(accepting.(client.WithWatch), interceptor.Funcs{Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return denial }})
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(p.img)}
	for n := range 5 {
		assert.Equal(t, trigger.ConflictRetryDelay<<n, p.mustReconcile().RequeueAfter, "the next read may solve it")
	}
	for range 2 {
		_, err := p.Reconcile(t.Context(), request)
		require.ErrorIs(t, err, denial, "it backs off as after other errors")
	}
	p.Client = accepting
	p.mustReconcile()
	assert.False(t, p.conflicts.IsExhausted(request))
}
