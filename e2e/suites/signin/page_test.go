//go:build linux

package signin_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/dashboard"
)

// TestCommandsOfThePage follows what docs/dashboard.md says of the cluster. helm's commands are
// rendered by e2e/suites/chart TestHelmCommandsInDocs; a port is forwarded by kubelets alone.
func TestCommandsOfThePage(t *testing.T) {
	elected, other := shared.electedAndOther(t)
	t.Cleanup(func() {
		ctx := context.Background()
		for _, o := range []client.Object{
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "fleet-readers"}}, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "wall-display"}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: "wall-display"}},
		} {
			assert.NoError(t, shared.Delete(ctx, o))
		}
	})
	terminal := pages.OpenTerminal(t, "hub", map[string]string{"hub": shared.Plane.Kubeconfig()})
	page := pages.Read(t, "docs/dashboard.md")
	token, ran := "", 0
	for _, command := range page.Commands() {
		switch {
		case !strings.Contains(command, "wall-display") && !strings.Contains(command, "fleet-readers"):
			continue
		case strings.Contains(command, "create token"):
			token = terminal.MustRun(t, command)
		default:
			terminal.MustRun(t, command)
		}
		ran++
	}
	require.Equal(t, 4, ran)
	b := newBrowser(t)
	requireSignedIn(t, b.login(t, other.UIURL, token))
	assert.Equal(t, "system:serviceaccount:ot-hub:wall-display", b.whoAmI(t, other.UIURL).User)
	person := newBrowser(t)
	requireSignedIn(t, person.login(t, other.UIURL, shared.issueToken(t, "paul@example.com", "platform")))

	terminal.MustRun(t, "kubectl -n ot-hub delete secret ot-hub-ui-key")
	require.Contains(t, page.Commands(), "kubectl -n ot-hub delete secret ot-hub-ui-key")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return b.get(t, other.UIURL, summaryPath).status == http.StatusUnauthorized
	}), "cookies outlive their key")
	assert.Equal(t, http.StatusUnauthorized, person.get(t, other.UIURL, summaryPath).status)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		err := shared.Get(t.Context(), client.ObjectKey{Namespace: program.HubNamespace, Name: dashboard.KeySecret}, &corev1.Secret{})
		return !apierrors.IsNotFound(err)
	}), "there is no other key")
	require.True(t, testenv.AwaitCondition(t, func() bool { return b.login(t, other.UIURL, token).status == http.StatusNoContent }))
	require.True(t, testenv.AwaitCondition(t, func() bool { return b.get(t, elected.UIURL, summaryPath).status == http.StatusOK }), "the replicas have different keys")
}

// TestValuesOfThePage renders the chart with the values of docs/dashboard.md.
func TestValuesOfThePage(t *testing.T) {
	values := map[string]any{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(pages.Read(t, "docs/dashboard.md").Block(t, "yaml", "hosts:")), &values))
	objects, err := chart.Render(t.Context(), filepath.Join(pages.Root, "charts", "ot-hub"), "ot-hub", program.HubNamespace, values)
	require.NoError(t, err)
	kinds := map[string]string{}
	for _, o := range objects {
		if o.GetName() == "ot-hub-ui" {
			kinds[o.GetKind()] = o.GetNamespace()
		}
	}
	assert.Equal(t, map[string]string{"Service": program.HubNamespace, "Ingress": program.HubNamespace}, kinds)
}
