// Package gather reads the snapshots of doctor: with the caller's own rights, one bounded read
// for each kind. A read that is refused leaves its right in the snapshot, and ends nothing.
package gather

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/doctor"
)

const (
	// maxObjects bounds the read of one kind.
	maxObjects = 500
	// maxNamedReads bounds the reads of objects by their names, of one kind.
	maxNamedReads = 50
	// maxParallelReads is how many requests run at a time.
	maxParallelReads = 8
	requestTimeout   = 20 * time.Second
	maxErrorBytes    = 300
)

// Options say what of.
type Options struct {
	Cluster        string
	CLIVersion     string
	AgentNamespace string
	Asked          doctor.Asked
	// ProbeImage is the image of the Pod that --probe runs; by default the agent's.
	ProbeImage string
	Now        func() time.Time
}

// PolicyNamespace and PolicyName are where the charts put the policy.
const (
	PolicyNamespace = policy.DefaultNamespace
	PolicyName      = policy.DefaultName
)

// reader fills one snapshot.
type reader struct {
	*connect.Cluster
	options  Options
	snapshot *doctor.Snapshot

	mu sync.Mutex // for Unread and Truncated
	// cdiNamespace is that of CDI's webhooks.
	cdiNamespace string
	// probeProxy is what imports use, with its credentials.
	probeProxy map[string]string
	// agentPod is of the agent's Deployment; nil where it could not be read.
	agentPod *corev1.PodSpec
}

// Member reads a member's own API server. It fails only where that does not answer at all.
func Member(ctx context.Context, cluster *connect.Cluster, o Options) (*doctor.Snapshot, error) {
	r := newReader(cluster, o, doctor.ViewMember)
	if err := r.readVersion(ctx); err != nil {
		return nil, cluster.Explain(err)
	}
	r.all(ctx, r.readKinds, r.readStorageClasses, r.readCSIDrivers, r.readCapacities, r.readQuotas, r.readCDI, r.readCDIConfig, r.readProfiles,
		r.readSnapshotClasses, r.readSnapshots, r.readKubeVirt, r.readWebhooks, r.readDataVolumePolicy, r.readOneDownload,
		r.readImages, r.readDeployment, r.readLedger, r.readLease, r.readPolicy)
	r.all(ctx, r.readReport, r.readUses, r.readServices, r.readTrustedCA)
	r.all(ctx, r.readNamespaces, r.readSecrets)
	if o.Asked.ProbeURL != "" {
		r.probe(ctx)
	}
	return r.snapshot, ctx.Err()
}

func newReader(cluster *connect.Cluster, o Options, view doctor.View) *reader {
	asked := o.Asked
	asked.ProbeURL = v1alpha1.RedactURL(asked.ProbeURL)
	return &reader{Cluster: cluster, options: o, snapshot: &doctor.Snapshot{
		View: view, Cluster: o.Cluster, CLIVersion: o.CLIVersion, Asked: asked, Unread: map[doctor.Source]string{},
		Agent: doctor.Agent{Namespace: o.AgentNamespace},
	}}
}

// all runs reads side by side. Each writes fields of its own.
func (r *reader) all(ctx context.Context, reads ...func(context.Context)) {
	var group errgroup.Group
	group.SetLimit(maxParallelReads)
	for _, read := range reads {
		group.Go(func() error {
			bounded, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			read(bounded)
			return nil
		})
	}
	_ = group.Wait() // reads leave their errors in the snapshot
}

// unless records why a source could not be read, and reports whether it could. That there is
// none of a kind, or no such kind, is an answer.
func (r *reader) unless(source doctor.Source, err error) (ok bool) {
	if err == nil || isAbsent(err) {
		return err == nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snapshot.Unread[source] = describe(string(source), err)
	return false
}

func isAbsent(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// describe names the right that is lacking, or says what went wrong.
func describe(right string, err error) string {
	if apierrors.IsForbidden(err) {
		return "needs the right to " + right
	}
	return fmt.Sprintf("%s failed: %s", right, v1alpha1.SanitizeText(err.Error(), maxErrorBytes))
}

// list reads the first objects of a kind.
func (r *reader) list(ctx context.Context, source doctor.Source, list client.ObjectList, options ...client.ListOption) bool {
	err := r.Client.List(ctx, list, append(options, client.Limit(maxObjects))...)
	if err == nil && list.GetContinue() != "" {
		r.mu.Lock()
		r.snapshot.Truncated = append(r.snapshot.Truncated, source)
		r.mu.Unlock()
	}
	return r.unless(source, err)
}

func (r *reader) get(ctx context.Context, source doctor.Source, namespace, name string, object client.Object) bool {
	return r.unless(source, r.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object))
}

// readVersion compares the clocks, too. It is the first request: its failure ends everything,
// unless it is a refusal.
func (r *reader) readVersion(ctx context.Context) error {
	httpClient, err := rest.HTTPClientFor(r.Config)
	if err != nil {
		return fmt.Errorf("making a client of the API server: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	server, _, err := rest.DefaultServerUrlFor(r.Config)
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.JoinPath("version").String(), nil)
	if err != nil {
		return fmt.Errorf("asking for the version: %w", err)
	}
	start := r.options.Now()
	response, err := httpClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	s := r.snapshot
	s.RoundTrip = r.options.Now().Sub(start)
	s.ClientTime = start.Add(s.RoundTrip / 2)
	s.ServerTime, _ = http.ParseTime(response.Header.Get("Date"))
	return r.decodeVersion(response)
}
