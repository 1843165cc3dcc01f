package report

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Whatever refuses a page, the agent still beats, and the hub does not take images that are not shown
// for images that are not there.
func TestRefusedPageIsOmitted(t *testing.T) {
	resource := v1alpha1.GroupVersion.WithResource("clusterreports").GroupResource()
	for name, refusal := range map[string]error{
		"a policy or an older CRD": apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("ClusterReport").GroupKind(), "page", nil),
		"a quota or a webhook":     apierrors.NewForbidden(resource, "page", errors.New("exceeded quota: count/clusterreports.pelotech.ot")),
		"its size":                 apierrors.NewRequestEntityTooLargeError("limit is 3145728"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newFakeMember(t, 3)
				writeRoot := func() *v1alpha1.ReportRoot {
					t.Helper()
					more, err := m.writeReport(t.Context())
					require.NoError(t, err)
					assert.False(t, more)
					stored := &v1alpha1.ClusterReport{}
					require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.MailboxName}, stored))
					return stored.Root
				}
				m.refusePage = func() error { return refusal }
				root := writeRoot()
				assert.EqualValues(t, 3, root.Images)
				assert.EqualValues(t, 3, root.OmittedImages)
				assert.Empty(t, root.Pages)

				tries := 0
				m.refusePage = func() error { tries++; return refusal }
				m.changeImage(imageKey(1), false)
				m.deliverEvents()
				assert.EqualValues(t, 3, writeRoot().OmittedImages)
				assert.Zero(t, tries, "it is tried again at once")
				require.NoError(t, trigger.Sleep(t.Context(), refusedPageDelay)) // by the clock of the bubble
				m.refusePage = nil
				root = writeRoot()
				assert.Zero(t, root.OmittedImages)
				assert.Len(t, root.Pages, 1)

				m.refusePage = func() error { return refusal }
				m.changeImage(imageKey(0), false)
				m.deliverEvents()
				root = writeRoot()
				assert.EqualValues(t, 3, root.OmittedImages, "they are shown as they were")
				assert.Len(t, root.Pages, 1)
			})
		})
	}
}
