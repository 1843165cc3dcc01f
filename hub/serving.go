package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/controllers/imageprune"
	reportcontroller "github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/history"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/prometheus"
	"github.com/pelotech/ot-fleet/hub/rollout"
	"github.com/pelotech/ot-fleet/hub/web"
)

// watchCertificate returns the certificate in --metrics-cert-dir and follows its files;
// nil where none is given.
func watchCertificate(o options) (*certwatcher.CertWatcher, error) {
	certificate, key, ok := o.CertificateFiles()
	if !ok {
		return nil, nil
	}
	watcher, err := certwatcher.New(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate in --metrics-cert-dir: %w", err)
	}
	return watcher, nil
}

// configureServing has the manager serve metrics and the read API with the given
// certificate or, to other replicas, with a self-signed one. It returns the address and
// the fingerprint by which those reach this replica.
func configureServing(o options, process string, given *certwatcher.CertWatcher, managerOptions *ctrl.Options) (readapi.ReplicaAddress, error) {
	fingerprint := ""
	if o.MetricsSecure {
		own, err := web.NewCertificate(o.advertise)
		if err != nil {
			return readapi.ReplicaAddress{}, err
		}
		fingerprint = readapi.Fingerprint(own.Leaf)
		served := &managerOptions.Metrics
		served.FilterProvider = web.KeepCredential(served.FilterProvider)
		served.CertDir = "" // the certificate comes from GetCertificate
		served.TLSOpts = []func(*tls.Config){func(c *tls.Config) {
			c.GetCertificate = web.SelectCertificate(own, given)
		}}
	}
	return readapi.NewReplicaAddress(process, o.advertise, o.MetricsAddress, fingerprint), nil
}

// setupReadAPI serves the read API; a replica that is not elected forwards requests to
// the elected one.
func (h *hub) setupReadAPI() error {
	loaded := func() bool { return h.store.HasSynced() && h.rollouts.IsSynced() }
	changes := web.NewChanges(h.process)
	watcher := web.NewWatcher(h.local.GetCache(), h.index, changes, loaded, h.sourceGroups)
	h.policy.OnChange(func() { changes.Mark(readapi.TopicPolicy) })
	h.shares.OnChange(func(string) { changes.Mark(readapi.TopicTransfers) })
	stopping := make(stopSignal)
	if err := h.addRunnables(watcher, stopping); err != nil {
		return err
	}
	h.transfers = func(now time.Time) (history.LatestSample, bool) { return watcher.History().Latest(now) }
	if h.prometheus.URL != "" {
		filler := prometheus.NewFiller(h.prometheus, func() { changes.Mark(readapi.TopicTransfers) })
		watcher.Sampled = filler.Offer
		if err := h.addRunnables(filler); err != nil {
			return err
		}
	}
	api := &web.API{
		Members: h.local.GetCache(), Live: h.live, Index: h.index, Pages: h.reports, ReportsLoaded: loaded,
		Changes: changes, History: watcher.History, Stopping: stopping, HeldBySource: h.shares.HeldBySource,
		PolicyKey: h.Policy,
		Policy: func() answers.PolicyInForce {
			state := h.policy.Current()
			return answers.PolicyInForce{Policy: state.Policy, Accepted: state.Known && !state.Refused, Refused: state.Refused, Contradicted: len(state.Standing) > 0, Message: state.Message, Now: time.Now()}
		},
		Root: func(member string) (*v1alpha1.ReportRoot, *time.Time) {
			root := h.store.Root(member)
			return root.Report, root.ReceivedAt
		},
		RolloutView: func(image string) (rollout.View, bool) { return h.rollouts.View(image, time.Now()) },
		PageNames: func(member string) []string {
			root := h.store.Root(member)
			return root.PageNames()
		},
		PruneTargets: func(ctx context.Context, prune string) ([]readapi.PruneTarget, bool, error) {
			states, found, err := h.prunes.TargetStates(ctx, prune)
			targets := make([]readapi.PruneTarget, len(states))
			for i := range states {
				targets[i] = newPruneTarget(&states[i])
			}
			return targets, found, err
		},
	}
	forwarder := &web.Forwarder{
		Elected: h.manager.Elected(), AllowPlainText: !h.MetricsSecure, Stopping: stopping,
		Leader: &readapi.LeaderLocator{Live: h.live, Namespace: h.Namespace},
	}
	reads := api.Handlers()
	for path, handler := range reads {
		reads[path] = forwarder.Wrap(handler)
		if err := h.manager.AddMetricsServerExtraHandler(path, reads[path]); err != nil {
			return err
		}
	}
	return h.setupDashboard(reads)
}

// sourceGroups returns the names of the groups of sources of the policy in force.
func (h *hub) sourceGroups() (names []string) {
	if b := h.fleetBudget(); b != nil {
		for _, s := range b.Sources {
			names = append(names, s.Name)
		}
	}
	return names
}

// stopSignal is closed when the manager stops. The server waits for open streams, which end
// by it.
type stopSignal chan struct{}

// Start implements manager.Runnable.
func (s stopSignal) Start(ctx context.Context) error {
	<-ctx.Done()
	close(s)
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (stopSignal) NeedLeaderElection() bool { return false }

func newPruneTarget(s *imageprune.TargetState) readapi.PruneTarget {
	return readapi.PruneTarget{
		Cluster: s.Cluster, Namespace: s.Namespace, Name: s.Name, UID: s.Target.UID, Revision: s.Revision, Bytes: s.Bytes,
		State: s.State, Reason: s.Reason, Message: s.Message, Until: s.Until,
	}
}

// setupHealth adds the metrics of the fleet and the probes.
func (h *hub) setupHealth() error {
	if err := ctrlmetrics.Registry.Register(&metrics.FleetCollector{Elected: h.manager.Elected(), Reader: h.local.GetCache(), Reports: h.store, Index: h.index, Transfers: h.transfers}); err != nil {
		return err
	}
	if err := h.manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := h.manager.AddReadyzCheck("reports", checkReportsRead(h.manager.Elected(), h.store)); err != nil {
		return err
	}
	caches := map[string]func(context.Context) bool{"the hub's own cluster": h.local.GetCache().WaitForCacheSync}
	if err := health.AddReadyChecks(h.local, h.apiServer.Monitor, h.apiServer.Permissions, caches); err != nil {
		return err
	}
	return h.local.Add(h.apiServer.Permissions)
}

// checkReportsRead is ready once the read API has answers: on the elected replica when
// the stored reports are read, on the others at once, since they forward.
func checkReportsRead(elected <-chan struct{}, store *reportcontroller.Store) healthz.Checker {
	return func(*http.Request) error {
		select {
		case <-elected:
			if !store.HasSynced() {
				return errors.New("the stored reports have not all been read")
			}
		default:
		}
		return nil
	}
}
