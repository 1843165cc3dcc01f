package connection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ReportProbe reads the report of a member once, with a connection of its own.
type ReportProbe struct {
	Secrets *SecretReader
	// Timeout bounds a request.
	Timeout time.Duration
}

// errNoSecret: no Secret has a kubeconfig for the member.
var errNoSecret = errors.New("no Secret has a kubeconfig for it")

// errNoReport: the member answers, and has no report.
var errNoReport = errors.New("it has no report")

// Root reads the root of a member's report in the member. It lists, as the replica that syncs the
// member does, which may get no answer to that, or not be allowed to, where single objects can be read.
func (g *ReportProbe) Root(ctx context.Context, member *v1alpha1.MemberCluster) (*v1alpha1.ClusterReport, error) {
	name, key := connectionSecret(member)
	if name == "" {
		return nil, errNoSecret
	}
	secret, err := g.Secrets.readSecret(ctx, name)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		return nil, errNoSecret
	}
	if member.Spec.Connection.ClusterAPI != nil && !matchesPurpose(secret, clusterAPIPurpose(member)) {
		return nil, errNoSecret
	}
	cfg, _, err := hubclient.ParseMemberKubeconfig(member, secret.Data[key])
	if err != nil {
		return nil, err
	}
	if cfg.BearerToken, err = g.Secrets.tokenInUse(ctx, member, secret.Data[key], cfg.BearerToken); err != nil {
		return nil, err
	}
	return readRoot(ctx, member, cfg, g.Timeout)
}

func readRoot(ctx context.Context, member *v1alpha1.MemberCluster, cfg *rest.Config, timeout time.Duration) (*v1alpha1.ClusterReport, error) {
	c, done, err := hubclient.NewClient(cfg, timeout, client.Options{Scheme: hubclient.Scheme, Mapper: hubclient.Mapper})
	if err != nil {
		return nil, err
	}
	defer done()
	var roots v1alpha1.ClusterReportList
	if err := c.List(ctx, &roots, client.InNamespace(member.Spec.AgentNamespace), client.MatchingFields{"metadata.name": v1alpha1.MailboxName}); err != nil {
		return nil, fmt.Errorf("listing the report in member %s: %w", member.Name, err)
	}
	if len(roots.Items) != 1 {
		return nil, fmt.Errorf("listing the report in member %s: %w", member.Name, errNoReport)
	}
	return &roots.Items[0], nil
}
