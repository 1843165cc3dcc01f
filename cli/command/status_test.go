package command

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/status"
)

// Who may not list ImagePrunes sees the fleet, and that what can go may be gone.
func TestStatusNamesUnreadPrunes(t *testing.T) {
	e, hub := newReadAPI(t, func(*http.Request) any { return readapi.Summary{} })
	report := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "spring"}}
	report.Status = v1alpha1.PruneReportStatus{Digest: "1", CompletedAt: ptr.To(metav1.NewTime(e.now())), Candidates: v1alpha1.PruneTotal{Count: 3}}
	forbidden := interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if _, ok := list.(*v1alpha1.ImagePruneList); ok {
			return apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "imageprunes"}, "", nil)
		}
		return c.List(ctx, list, options...)
	}}
	hub.Client = fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(report).WithInterceptorFuncs(forbidden).Build()
	s, err := e.gatherStatus(t.Context(), hub, "")
	require.NoError(t, err)
	st := status.New(s)
	assert.EqualValues(t, 3, st.Prunable.Images)
	assert.Contains(t, st.Prunable.Unread, "imageprunes.pelotech.ot is forbidden")
	assert.Empty(t, st.Unread, "the read API answers")
}
