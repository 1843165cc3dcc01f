//go:build linux

package chart_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Who deletes a MemberCluster that the hub would create again is told what to delete instead.
// Nothing is refused.
func TestDeletionsThatDoNotLastAreExplained(t *testing.T) {
	c, heard := clientWithWarnings(t, "admin")
	hub, heardByHub := clientWithWarnings(t, "ot-hub")
	newMember := func(name, origin string, connection v1alpha1.MemberConnection) *v1alpha1.MemberCluster {
		m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MemberClusterSpec{Connection: connection}}
		if origin != "" {
			m.Labels = map[string]string{v1alpha1.LabelDiscovered: origin}
		}
		require.NoError(t, adminClient.Create(t.Context(), m))
		t.Cleanup(func() { assert.NoError(t, client.IgnoreNotFound(adminClient.Delete(context.Background(), m))) })
		return m
	}
	secret := v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "its-secret"}}
	ofSecret := newMember("of-secret", "secret", secret)
	ofCluster := newMember("of-cluster", "cluster-api", v1alpha1.MemberConnection{ClusterAPI: &v1alpha1.ClusterAPIRef{Namespace: "team-a", Name: "oslo"}})
	ofPerson := newMember("of-person", "", secret)

	const secretSays = "while Secret " + hubNamespace + "/its-secret exists, the hub creates MemberCluster of-secret again within seconds. To remove the member, delete that Secret: kubectl -n " + hubNamespace + " delete secret its-secret"
	require.True(t, testenv.AwaitCondition(t, func() bool { // a new policy is not in force at once
		require.NoError(t, c.Delete(t.Context(), ofSecret.DeepCopy(), client.DryRunAll))
		return strings.Contains(strings.Join(heard.takeWarnings(), "; "), secretSays)
	}))
	require.NoError(t, c.Delete(t.Context(), ofCluster.DeepCopy(), client.DryRunAll))
	assert.Contains(t, strings.Join(heard.takeWarnings(), "; "), "Cluster team-a/oslo of Cluster API is selected as a member, so the hub creates MemberCluster of-cluster again")
	require.NoError(t, c.Delete(t.Context(), ofPerson.DeepCopy(), client.DryRunAll))
	assert.Empty(t, heard.takeWarnings(), "it does not come back")
	require.NoError(t, hub.Delete(t.Context(), ofSecret.DeepCopy(), client.DryRunAll))
	assert.Empty(t, heardByHub.takeWarnings(), "its Secret is gone")

	require.NoError(t, c.Delete(t.Context(), ofSecret))
	assert.Contains(t, strings.Join(heard.takeWarnings(), "; "), secretSays)
	assert.True(t, apierrors.IsNotFound(adminClient.Get(t.Context(), client.ObjectKeyFromObject(ofSecret), ofSecret)), "it is deleted")
}
