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

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestActivityIsCopiedUp(t *testing.T) {
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	a.writeActivity(1)
	assert.Equal(t, mailbox.UpResult{ReportMissing: true}, b.mustUp(r), "without a root there is no report")
	a.writePage("page", "")
	a.writeRoot()
	assert.Equal(t, mailbox.UpResult{Written: 3}, b.mustUp(r))
	b.requireSameReports()
	b.requireWrites(3, 0)
	a.writeActivity(2)
	b.resetCounts()
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.mustUp(r))
	assert.EqualValues(t, 0, b.hubReads.Load(), "reads of the hub past the cache")
	assert.EqualValues(t, 0, b.memberReads.Load(), "reads of the member past the cache")
	b.requireSameReports()

	b.editHubCopy(v1alpha1.ActivityName, func(o *v1alpha1.ClusterReport) { o.Activity.Slots = 7 })
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.mustUp(r))
	b.requireSameReports()
	a.deletePage(v1alpha1.ActivityName)
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.mustUp(r))
	b.requireSameReports()
	assert.Equal(t, mailbox.UpResult{}, b.mustUp(r))
}

// useReportsWithoutActivity serves the definition of ClusterReports of release 0.2 on the hub
// until upgrade is called or the test ends.
func useReportsWithoutActivity(t *testing.T) (upgrade func()) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, apiextensionsv1.AddToScheme(scheme))
	c, err := client.New(hubConfig, client.Options{Scheme: scheme})
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
				ObjectMeta: objectMeta("default", v1alpha1.ActivityName), ClusterUID: cluster, Sequence: 1,
				Activity: &v1alpha1.ReportedActivity{ObservedAt: metav1.Now(), BootID: "probe"},
			}
			return (hubClient.Create(context.Background(), probe, client.DryRunAll) == nil) == admitsActivity
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
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	upgrade := useReportsWithoutActivity(t)
	a.writePage("page", "")
	a.writeRoot()
	a.writeActivity(1)
	up := b.mustUp(r)
	require.True(t, apierrors.IsInvalid(up.ActivityRefused), "%v", up.ActivityRefused)
	assert.Equal(t, 2, up.Written)
	b.requireWrites(3, 0)
	for n := range int32(5) {
		a.writeActivity(n)
		a.writeRoot()
		assert.Equal(t, mailbox.UpResult{Written: 1}, b.mustUp(r), "a heartbeat")
	}
	b.requireWrites(5, 0)

	// An upgraded hub restarts and gives pull-mode agents a new challenge, which resets what they
	// remember.
	upgrade()
	upgraded := b.newRelay()
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.mustUp(upgraded))
	b.requireSameReports()
}
