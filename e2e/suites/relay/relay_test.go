//go:build linux

// Package relay_test syncs mailboxes with a real API server: only that shows what one with older CRDs drops
// or refuses, and what caches show of two relays that write at once. The rest is tested in api/mailbox.
package relay_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/apitest/mailboxtest"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// plane is the side of a mailbox that a test wants to see real, or both.
var (
	plane  *controlplane.ControlPlane
	server client.WithWatch
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	controlplane.RunTests(m, controlplane.Options{Name: "mailbox", BeforeControllers: func(ctx context.Context, cfg *rest.Config) error {
		return controlplane.InstallCRDFiles(ctx, cfg, filepath.Join("..", "..", "..", "charts", "ot-hub", "files", "mailbox"))
	}}, func(_ context.Context, started *controlplane.ControlPlane) error {
		scheme, err := mailboxtest.NewScheme()
		if err != nil {
			return err
		}
		plane = started
		server, err = client.NewWithWatch(plane.Config(), client.Options{Scheme: scheme})
		return err
	})
}

func TestMissingNamespacesAreReported(t *testing.T) {
	b := mailboxtest.New(t, server, server)
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	b.WritePlan(1, 1, "one", "1")
	a.WriteRoot()
	noMember, noHub := r, r
	noMember.Member.Namespace = "nowhere"
	_, err := noMember.SyncDown(t.Context())
	require.True(t, apierrors.IsNotFound(err))
	require.ErrorContains(t, err, `creating ClusterPlan nowhere/default in the member (the namespace does not exist there, or the kind is not served: install chart ot-agent, or correct agentNamespace of the MemberCluster): namespaces "nowhere" not found`)
	up, err := noMember.SyncUp(t.Context(), "")
	require.NoError(t, err)
	assert.Equal(t, mailbox.UpResult{ReportMissing: true}, up)

	noHub.Hub.Namespace = "nowhere"
	_, err = noHub.SyncUp(t.Context(), "")
	require.True(t, apierrors.IsNotFound(err))
	require.ErrorContains(t, err, `creating ClusterReport nowhere/default on the hub (the namespace does not exist there, or the kind is not served): namespaces "nowhere" not found`)
	assert.Equal(t, mailbox.DownResult{}, b.MustDown(noHub))
}
