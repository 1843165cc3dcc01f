package registration

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// step is one write. The next step is decided from the state after it, so that a hub
// that is killed between two steps, or its successor, can continue.
type step string

const (
	noStep             step = ""
	addFinalizer       step = "add the finalizer to the MemberCluster"
	removeFinalizer    step = "remove the finalizer from the MemberCluster"
	createQuota        step = "create the ResourceQuota"
	createJoinAccount  step = "create the ServiceAccount of the join token"
	bindJoinAccount    step = "bind the ServiceAccount of the join token"
	issueJoinToken     step = "issue a join token"
	unbindJoinAccount  step = "delete the RoleBinding of the join token"
	deleteJoinAccount  step = "delete the ServiceAccount of the join token"
	deleteJoinSecret   step = "delete the Secret with the join token"
	deleteClusterJoin  step = "delete the ClusterJoin"
	answerClusterJoin  step = "answer the ClusterJoin"
	createAgentAccount step = "create the agent's ServiceAccount"
	bindAgentAccount   step = "bind the agent's ServiceAccount"
	createLease        step = "create the agent's Lease"
	issueCredential    step = "issue the agent's credential"
	unbindAgentAccount step = "delete the agent's RoleBinding"
	deleteAgentAccount step = "delete the agent's ServiceAccount"
)

// decision is the next step for one member, and its condition until then.
type decision struct {
	step step
	// joinStatus is the new status of the ClusterJoin, for steps answerClusterJoin and
	// issueCredential.
	joinStatus v1alpha1.ClusterJoinStatus
	// condition Joined; nil for none. It is published if there is no step, or if the
	// step fails.
	condition *metav1.Condition
	// awaitsAcceptance: an agent waits for its key to be accepted.
	awaitsAcceptance bool
	// requeueAfter is when to reconcile again; 0 for never.
	requeueAfter time.Duration
}

const (
	// contactPollInterval is how often to check whether an agent uses its credential while it can
	// fetch it, and idlePollInterval how often afterwards: it may be gone for good.
	// There is no watch, because it would deliver every renewal of every agent's Lease.
	contactPollInterval = 2 * time.Second
	idlePollInterval    = time.Minute
	// repairInterval is how often to check whether somebody deleted what a registered
	// agent needs.
	repairInterval = 10 * time.Minute
	// maxMessageLength bounds condition messages, in bytes.
	maxMessageLength = 1024
)

func decideNextStep(s snapshot) decision {
	deleted := !s.member.DeletionTimestamp.IsZero()
	pull := s.member.Spec.Connection.Pull
	switch {
	case pull == nil, deleted && !hasFinalizer(s.member, v1alpha1.FinalizerMember):
		return s.decideLeave()
	case pull.Revoked, s.member.Spec.Quarantine != nil && !deleted:
		return s.decideRevoked()
	case s.reportsRevoked():
		// Publish another reason before anything is issued again: reason Revoked permits
		// unsetting revoked, and must not be left over when it is set the next time.
		return s.withCondition(noStep, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent, "a join token is being issued")
	case deleted:
		// The agent still needs its credential while the hub cleans up in the member.
		return decision{condition: s.storedCondition()}
	case !hasFinalizer(s.member, finalizer):
		return s.withCondition(addFinalizer, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent, "a join token is being issued")
	case !s.namespaceReady:
		return s.withCondition(noStep, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent,
			"a join token is issued once the hub has created namespace %s%s for the member (see condition Ready)", v1alpha1.MemberNamespacePrefix, s.member.Name)
	}
	d := s.decideRegistration()
	if s.credentialInUse() && d.condition.Status != metav1.ConditionTrue {
		// The agent's credential is valid until another one replaces it.
		d.condition = s.newCondition(metav1.ConditionTrue, v1alpha1.ReasonJoined, "the agent has a credential; in addition, %s", d.condition.Message)
	}
	return d
}

// decideRegistration returns the next step of a registration. A round starts with the
// creation of the join token's account and ends with its deletion; objects of another
// round are deleted.
func (s snapshot) decideRegistration() decision {
	tokenRequest := s.member.Annotations[v1alpha1.AnnotationJoinToken]
	preparing := func(next step) decision {
		return s.withCondition(next, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent, "the join token or credential is being prepared")
	}
	switch {
	case s.quotaMissing:
		return preparing(createQuota)
	case s.joinAccount.bindingExists && (!s.joinAccount.exists() || s.joinAccount.bindingForeign):
		return preparing(unbindJoinAccount)
	case s.joinAccount.exists() && s.joinAccount.joinTokenRequest != tokenRequest:
		return s.endRegistrationRound(preparing)
	case s.clusterJoin != nil && s.clusterJoin.Spec.Account != s.joinAccount.uid:
		return preparing(deleteClusterJoin)
	case s.joinSecret != nil && isManagedByHub(s.joinSecret) && s.joinSecret.Annotations[annotationAccount] != string(s.joinAccount.uid):
		return preparing(deleteJoinSecret)
	case s.agentAccount.exists() && s.agentAccount.bindingForeign:
		return preparing(unbindAgentAccount)
	case s.agentAccount.exists() && !s.agentAccount.bindingExists:
		return preparing(bindAgentAccount)
	case s.agentAccount.exists() && !s.leaseExists:
		return preparing(createLease)
	case s.joinAccount.exists() && s.clusterJoin != nil:
		return s.decideOnClusterJoin()
	case s.joinAccount.exists():
		return s.offerJoinToken(preparing)
	case s.agentAccount.exists() && s.agentAccount.joinTokenRequest == tokenRequest:
		return s.awaitFirstContact("", idlePollInterval)
	default:
		return preparing(createJoinAccount)
	}
}

func (s snapshot) endRegistrationRound(withStep func(step) decision) decision {
	if s.joinAccount.bindingExists {
		return withStep(unbindJoinAccount)
	}
	return withStep(deleteJoinAccount)
}

// offerJoinToken keeps a join token ready until an agent presents it.
func (s snapshot) offerJoinToken(preparing func(step) decision) decision {
	switch {
	case !s.joinAccount.bindingExists:
		return preparing(bindJoinAccount)
	case s.joinSecret == nil:
		return preparing(issueJoinToken)
	case !isManagedByHub(s.joinSecret):
		return s.withCondition(noStep, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent,
			"Secret %s/%s was not created by the hub, which needs this name for the join token: rename or delete it", s.hubNamespace, s.joinSecret.Name)
	}
	expires, expired := s.joinTokenExpiry()
	if expired {
		return s.withCondition(noStep, metav1.ConditionFalse, v1alpha1.ReasonJoinTokenExpired, "the join token expired at %s without being used. %s", expires.Format(time.RFC3339), s.newTokenHint())
	}
	unreachable := ""
	if s.clusterOnlyURL != "" {
		unreachable = fmt.Sprintf(". It names %s, which only Pods of the hub's own cluster reach: for an agent elsewhere, set pull.apiURL and pull.apiCA of chart ot-hub first. %s",
			s.clusterOnlyURL, s.newTokenHint())
	}
	d := s.withCondition(noStep, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent,
		"a join token, valid until %s, is in Secret %s/%s: put its key %s into Secret %s/%s of the cluster%s", expires.Format(time.RFC3339),
		s.hubNamespace, s.joinSecret.Name, registration.KubeconfigKey, s.member.Spec.AgentNamespace, registration.JoinSecret, unreachable)
	d.requeueAfter = expires.Sub(s.now) + time.Second
	return d
}

// decideOnClusterJoin handles the ClusterJoin of this round.
func (s snapshot) decideOnClusterJoin() decision {
	fingerprint, err := registration.Fingerprint(s.clusterJoin.Spec.PublicKey)
	expires, expired := s.joinTokenExpiry()
	issued := s.clusterJoin.Status.Phase == v1alpha1.JoinIssued && s.agentAccount.exists() && s.agentAccount.clusterJoinUID == s.clusterJoin.UID
	switch {
	case issued && s.credentialInUse():
		return s.endRegistrationRound(func(next step) decision {
			return s.withCondition(next, metav1.ConditionTrue, v1alpha1.ReasonJoined, "the agent has its own credential")
		})
	case issued && s.joinSecret == nil:
		return s.awaitFirstContact(fmt.Sprintf(". It was issued to key %s", fingerprint), idlePollInterval)
	case issued && expired:
		return s.awaitFirstContact(fmt.Sprintf(". It was issued to key %s, and the agent could fetch it with its join token until %s", fingerprint, expires.Format(time.RFC3339)), idlePollInterval)
	case issued:
		return s.awaitFirstContact(fmt.Sprintf(". It was issued to key %s, and the agent can fetch it with its join token until %s", fingerprint, expires.Format(time.RFC3339)), contactPollInterval)
	case expired:
		return s.withCondition(noStep, metav1.ConditionFalse, v1alpha1.ReasonJoinTokenExpired,
			"the join token expired at %s before key %s was accepted. %s", expires.Format(time.RFC3339), fingerprint, s.newTokenHint())
	}
	obstacle := ""
	if err != nil {
		obstacle = fmt.Sprintf("the public key in ClusterJoin %s/%s is invalid: %v. %s", s.clusterJoin.Namespace, s.clusterJoin.Name, err, s.newTokenHint())
	} else {
		obstacle = s.acceptanceObstacle(fingerprint)
	}
	if obstacle != "" {
		d := s.withCondition(noStep, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAcceptance, "%s", obstacle)
		d.awaitsAcceptance = true
		if !expires.IsZero() {
			d.requeueAfter = expires.Sub(s.now) + time.Second
		}
		obstacle = v1alpha1.SanitizeText(obstacle, maxMessageLength)
		d.joinStatus = v1alpha1.ClusterJoinStatus{Phase: v1alpha1.JoinPending, Fingerprint: fingerprint, Message: obstacle}
		if at := s.clusterJoin.Status; at.Phase != d.joinStatus.Phase || at.Fingerprint != fingerprint || at.Message != obstacle || at.Credential != nil {
			d.step = answerClusterJoin
		}
		return d
	}
	issuing := func(next step) decision {
		return s.withCondition(next, metav1.ConditionFalse, v1alpha1.ReasonAwaitingContact, "key %s was accepted; its credential is being issued", fingerprint)
	}
	switch {
	case s.agentAccount.exists() && s.agentAccount.clusterJoinUID != s.clusterJoin.UID:
		// Invalidate the previous credential: of two registered agents, the later one wins.
		return issuing(deleteAgentAccount)
	case !s.agentAccount.exists():
		return issuing(createAgentAccount)
	default:
		d := issuing(issueCredential)
		d.joinStatus = v1alpha1.ClusterJoinStatus{
			Phase: v1alpha1.JoinIssued, Fingerprint: fingerprint,
			Message: "accepted; only the holder of the key can open the credential",
		}
		return d
	}
}

// acceptanceObstacle returns why a key is not accepted; empty if it is.
func (s snapshot) acceptanceObstacle(fingerprint string) string {
	pull := s.member.Spec.Connection.Pull
	who := fmt.Sprintf("an agent of cluster %s used the join token with key %s", s.clusterJoin.Spec.ClusterUID, fingerprint)
	patch := fmt.Sprintf(`{"spec":{"connection":{"pull":{"acceptedKey":%q}}}}`, fingerprint)
	accept := "if the agent's log shows the same key, accept it: " + shellword.FormatCommand("kubectl patch membercluster %s --type=merge --patch=%s", s.member.Name, patch)
	known := cmp.Or(types.UID(s.member.Annotations[v1alpha1.AnnotationAcceptCluster]), s.member.Status.ClusterUID)
	switch {
	case pull.AcceptedKey == fingerprint:
		return ""
	case pull.AcceptedKey != "":
		return fmt.Sprintf("%s, and spec.connection.pull.acceptedKey is %s: %s", who, pull.AcceptedKey, accept)
	case !pull.AutoAccept:
		return who + ": " + accept
	case known != "" && known != s.clusterJoin.Spec.ClusterUID:
		return fmt.Sprintf("%s. autoAccept does not apply, because the member is cluster %s: was the join token meant for another cluster? If not, %s", who, known, accept)
	default:
		return ""
	}
}

// awaitFirstContact waits until the agent uses its credential.
func (s snapshot) awaitFirstContact(how string, pollInterval time.Duration) decision {
	if s.credentialInUse() {
		d := s.withCondition(noStep, metav1.ConditionTrue, v1alpha1.ReasonJoined, "the agent has its own credential")
		d.requeueAfter = repairInterval
		return d
	}
	d := s.withCondition(noStep, metav1.ConditionFalse, v1alpha1.ReasonAwaitingContact, "the agent has a credential and has not used it yet%s. If it never does: %s", how, s.newTokenHint())
	d.requeueAfter = pollInterval
	return d
}

// credentialInUse reports whether the agent has used the newest credential: earlier
// ones belong to an account with another UID.
func (s snapshot) credentialInUse() bool {
	return s.agentAccount.exists() && registration.AccountOfHolder(s.leaseHolder) == s.agentAccount.uid
}

// joinTokenExpiry returns when the join token expires; zero if its Secret does not
// exist.
func (s snapshot) joinTokenExpiry() (at time.Time, expired bool) {
	if s.joinSecret == nil {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339, s.joinSecret.Annotations[annotationExpires])
	return at, err != nil || !s.now.Before(at)
}

func (s snapshot) newTokenHint() string {
	return "To get a new join token: " + shellword.FormatCommand("kubectl annotate --overwrite membercluster %s %s=$(date +%%s)", s.member.Name, v1alpha1.AnnotationJoinToken)
}

func (s snapshot) withCondition(next step, status metav1.ConditionStatus, reason, format string, args ...any) decision {
	return decision{step: next, condition: s.newCondition(status, reason, format, args...)}
}

func (s snapshot) newCondition(status metav1.ConditionStatus, reason, format string, args ...any) *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.ConditionJoined, Status: status, Reason: reason, Message: v1alpha1.SanitizeText(fmt.Sprintf(format, args...), maxMessageLength),
		ObservedGeneration: s.member.Generation,
		LastTransitionTime: storedtime.Truncate(s.now),
	}
}
