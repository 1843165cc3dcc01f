//go:build linux

package relay_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/apitest/mailboxtest"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// useReportsWithoutActivity serves the definition of ClusterReports of release 0.2 on the hub
// until upgrade is called or the test ends.
func useReportsWithoutActivity(t *testing.T) (upgrade func()) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, apiextensionsv1.AddToScheme(scheme))
	c, err := client.New(plane.Config(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	serve := func(change func(*apiextensionsv1.JSONSchemaProps), admitsActivity bool) {
		require.True(t, testenv.AwaitCondition(t, func() bool {
			require.NoError(t, c.Get(context.Background(), client.ObjectKey{Name: "clusterreports.pelotech.ot"}, crd))
			change(crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
			return c.Update(context.Background(), crd) == nil
		}))
		require.True(t, testenv.AwaitCondition(t, func() bool {
			probe := &v1alpha1.ClusterReport{
				ObjectMeta: mailboxtest.ObjectMeta("default", v1alpha1.ActivityName), ClusterUID: mailboxtest.Cluster, Sequence: 1,
				Activity: &v1alpha1.ReportedActivity{ObservedAt: metav1.Now(), BootID: "probe"},
			}
			return (server.Create(context.Background(), probe, client.DryRunAll) == nil) == admitsActivity
		}), "the API server serves the former definition")
	}
	var newest apiextensionsv1.JSONSchemaProps
	serve(func(schema *apiextensionsv1.JSONSchemaProps) {
		schema.DeepCopyInto(&newest)
		delete(schema.Properties, "activity")
		schema.XValidations = slices.DeleteFunc(schema.XValidations, func(rule apiextensionsv1.ValidationRule) bool {
			return strings.Contains(rule.Rule, "activity")
		})
		schema.XValidations = append(schema.XValidations,
			apiextensionsv1.ValidationRule{Rule: "self.metadata.name == 'default' || self.metadata.name.matches('^page(-[01]{1,32})?$')", Message: "a ClusterReport must be named default, page, or page- and up to 32 digits 0 and 1"},
			apiextensionsv1.ValidationRule{Rule: "has(self.root) != has(self.page)", Message: "a ClusterReport must have either root or page"})
	}, false)
	upgrade = sync.OnceFunc(func() { serve(func(schema *apiextensionsv1.JSONSchemaProps) { newest.DeepCopyInto(schema) }, true) })
	t.Cleanup(upgrade)
	return upgrade
}

// TestActivityForHubOfFormerRelease: the hub's API server refuses it; the report goes on.
func TestActivityForHubOfFormerRelease(t *testing.T) {
	b := mailboxtest.New(t, server, mailboxtest.NewClient(t))
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	upgrade := useReportsWithoutActivity(t)
	a.WritePage("page", "")
	a.WriteRoot()
	a.WriteActivity(1)
	up := b.MustUp(r)
	require.True(t, apierrors.IsInvalid(up.ActivityRefused), "%v", up.ActivityRefused)
	assert.Equal(t, 2, up.Written)
	b.RequireWrites(3, 0)
	for n := range int32(5) {
		a.WriteActivity(n)
		a.WriteRoot()
		assert.Equal(t, mailbox.UpResult{Written: 1}, b.MustUp(r), "a heartbeat")
	}
	b.RequireWrites(5, 0)

	// An upgraded hub restarts and gives pull-mode agents a new challenge, which resets what they
	// remember.
	upgrade()
	upgraded := b.NewRelay()
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.MustUp(upgraded))
	b.RequireSameReports()
}
