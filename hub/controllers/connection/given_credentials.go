package connection

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/credential"
	"github.com/pelotech/ot-fleet/hub/memberclient"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// givenCredentials remembers what happened to the credentials that the hub was given. A
// new replica starts with nothing and tries again.
type givenCredentials struct {
	mu       sync.Mutex
	byMember map[string]givenHistory
}

type givenHistory struct {
	purpose string
	failure *credential.Failure
	// refused and probed are the result and the time of the last request with the
	// credential.
	refused bool
	probed  time.Time
}

// load returns the history of a member's credential; an empty one for another purpose.
func (g *givenCredentials) load(member, purpose string) givenHistory {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.byMember[member]; h.purpose == purpose {
		return h
	}
	return givenHistory{purpose: purpose}
}

func (g *givenCredentials) store(member string, h givenHistory) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byMember == nil {
		g.byMember = map[string]givenHistory{}
	}
	g.byMember[member] = h
}

func (g *givenCredentials) forget(member string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byMember, member)
}

// probeSlack: a reconcile that is a little early probes, since the next one comes a whole
// interval later.
const probeSlack = time.Second

// givenState is what Decide needs, and what carries its decision out.
type givenState struct {
	credential.Snapshot
	kubeconfig []byte
	token      *memberToken
	history    givenHistory
}

// reconcileGiven replaces the token in a kubeconfig that somebody gave the hub.
func (k *credentialReconciler) reconcileGiven(ctx context.Context, member *v1alpha1.MemberCluster, stored *corev1.Secret) (reconcile.Result, error) {
	s, err := k.gatherGiven(ctx, member, stored)
	if err != nil {
		return reconcile.Result{}, err
	}
	d := credential.Decide(s.Snapshot, k.rotationOptions())
	k.Rotations.setCondition(member, d.Condition)
	switch {
	case d.Drop:
		return reconcile.Result{}, k.deleteTokenSecret(ctx, stored)
	case stored != nil && stored.Labels[managedByLabel] != managedByHub && len(d.IssueWith) > 0:
		err = prerequisiteError(fmt.Sprintf("Secret %s/%s was not created by the hub, which needs this name for the member's token: rename or delete it", stored.Namespace, stored.Name))
	case len(d.IssueWith) > 0:
		var next *memberToken
		if next, err = k.issueReplacement(ctx, member, s, d.IssueWith); err == nil {
			return k.storeReplacement(ctx, member, stored, s, next)
		}
	case d.ProbeGiven && time.Since(s.history.probed) >= credential.ProbeInterval-probeSlack:
		s.setGivenRefused(k.reviewToken(ctx, member, s.kubeconfig))
	}
	if err != nil {
		s.setFailure(err)
		ctrl.LoggerFrom(ctx).Info("Failed to replace the member's token; keeping the current one and retrying", "error", err.Error())
	}
	k.given.store(member.Name, s.history)
	d = credential.Decide(s.Snapshot, k.rotationOptions())
	k.Rotations.setCondition(member, d.Condition)
	return reconcile.Result{RequeueAfter: d.Wait}, nil
}

func (k *credentialReconciler) rotationOptions() credential.Options {
	return credential.Options{RenewAfter: k.RenewAfter, RetryRefused: k.RetryRefused, RetryFailed: k.RetryFailed}
}

func (k *credentialReconciler) gatherGiven(ctx context.Context, member *v1alpha1.MemberCluster, stored *corev1.Secret) (*givenState, error) {
	name, key := connectionSecret(member)
	s := &givenState{Snapshot: credential.Snapshot{
		Now: time.Now(), Member: member.Name, Secret: k.Namespace + "/" + name, AgentNamespace: member.Spec.AgentNamespace,
		Stored: stored != nil && stored.Labels[managedByLabel] == managedByHub,
	}}
	secret, err := k.secrets.readSecret(ctx, name)
	if err != nil || secret == nil {
		return s, err
	}
	s.kubeconfig = secret.Data[key]
	s.SecretExists, s.HasKubeconfig = true, len(s.kubeconfig) > 0
	cfg, _, err := hubclient.ParseMemberKubeconfig(member, s.kubeconfig)
	if err != nil {
		return s, nil
	}
	given := credential.Given{Kind: "a client certificate or a password"}
	if cfg.BearerToken != "" {
		given = credential.Describe(cfg.BearerToken)
	}
	s.Given = &given
	purpose, err := givenPurpose(member, s.kubeconfig)
	if err != nil {
		return s, err
	}
	s.history = k.given.load(member.Name, purpose)
	s.GivenRefused, s.Failure = s.history.refused, s.history.failure
	if token, known := tokenFromSecret(stored, purpose); known {
		// The way to the server is always that of the given kubeconfig.
		if token.kubeconfig, err = kubeconfigWithToken(s.kubeconfig, token.value); err != nil {
			return s, err
		}
		lifetime := token.lifetime()
		s.token, s.Issued = token, &lifetime
	}
	state, err := k.linkStatus(ctx, member)
	if err != nil {
		return s, err
	}
	if state.Known && !state.Reachable {
		s.Unreachable = state.Reason != v1alpha1.ReasonUnauthorized
		// The reason is also that of a token that lacks a permission.
		s.Refused = !s.Unreachable && s.token != nil && apierrors.IsUnauthorized(k.reviewToken(ctx, member, s.token.kubeconfig))
	}
	if s.Stored && s.token == nil && !s.Unreachable && memberstatus.ResolveClusterUID(member, "") != "" && wouldReplaceOtherServers(stored, s) {
		leads, err := k.leadsToMember(ctx, member, cfg)
		s.setGivenRefused(err)
		s.Unconfirmed = !leads
	}
	return s, nil
}

// wouldReplaceOtherServers reports whether a token of the given kubeconfig would replace a valid one of
// another server.
func wouldReplaceOtherServers(stored *corev1.Secret, s *givenState) bool {
	former, valid := tokenFromSecret(stored, stored.Annotations[annotationTokenFor])
	return valid && s.Now.Before(former.expires) && !isSameServer(former.kubeconfig, s.kubeconfig)
}

// leadsToMember reports whether what a kubeconfig leads to reports as the member's cluster, which is known. It
// returns no error where the server accepts the credential and has no report.
func (k *credentialReconciler) leadsToMember(ctx context.Context, member *v1alpha1.MemberCluster, cfg *rest.Config) (bool, error) {
	root, err := readRoot(ctx, member, cfg, k.RequestTimeout)
	switch {
	case errors.Is(err, errNoReport):
		return false, nil
	case err != nil:
		return false, err
	}
	return memberstatus.ResolveClusterUID(member, "") == root.ClusterUID, nil
}

// issueReplacement requests a token with the first credential that the member accepts.
func (k *credentialReconciler) issueReplacement(ctx context.Context, member *v1alpha1.MemberCluster, s *givenState, sources []credential.Source) (next *memberToken, err error) {
	for _, source := range sources {
		with := s.kubeconfig
		if source == credential.SourceIssued {
			with = s.token.kubeconfig
		}
		next, err = k.issueTokenWith(ctx, member, with, givenTokenLife)
		if source == credential.SourceGiven {
			s.setGivenRefused(err)
		}
		if err == nil {
			next.purpose = s.history.purpose
			return next, nil
		}
		if !apierrors.IsUnauthorized(err) {
			return nil, err
		}
	}
	return nil, err
}

func (k *credentialReconciler) storeReplacement(ctx context.Context, member *v1alpha1.MemberCluster, stored *corev1.Secret, s *givenState, next *memberToken) (reconcile.Result, error) {
	err := k.writeTokenSecret(ctx, member, stored, next)
	switch {
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		return reconcile.Result{}, err
	case err != nil:
		s.recordFailure(fmt.Sprintf("the hub could not store it in Secret %s/%s: %s", k.Namespace, TokenSecretName(member.Name), apierrors.ReasonForError(err)))
		k.given.store(member.Name, s.history)
		k.Rotations.setCondition(member, credential.Decide(s.Snapshot, k.rotationOptions()).Condition)
		return reconcile.Result{}, err
	}
	s.history.failure = nil
	k.given.store(member.Name, s.history)
	if s.token == nil {
		k.events.Eventf(member, nil, corev1.EventTypeNormal, "TokenRotated", "RotateToken",
			"Replaced the token in Secret %s by one that expires at %s and is stored in Secret %s/%s", s.Secret, next.expires.UTC().Format(time.RFC3339), k.Namespace, TokenSecretName(member.Name))
	}
	// The write of the Secret requeues the member.
	return reconcile.Result{}, nil
}

func (s *givenState) setGivenRefused(err error) {
	if err == nil || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		s.history.probed, s.history.refused = s.Now, apierrors.IsUnauthorized(err)
		s.GivenRefused = s.history.refused
	}
}

// maxRefusalLength bounds what is quoted of a member's answer.
const maxRefusalLength = 600

func (s *givenState) setFailure(err error) {
	_, message := memberclient.ClassifyError(err)
	if missing, ok := MissingPrerequisite(err); ok {
		message = missing
	} else if isRefusedByPolicy(err) {
		message = v1alpha1.SanitizeText(err.Error(), maxRefusalLength)
	}
	s.recordFailure(message)
}

func (s *givenState) recordFailure(message string) {
	count := 1
	if s.Failure != nil {
		count += s.Failure.Count
	}
	s.Failure = &credential.Failure{At: s.Now, Count: count, Message: message}
	s.history.failure = s.Failure
}
