package join

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/fleet"
)

// snapshot is all that is decided upon for one member, read live: what is not there
// by it is made, and what is made is worth something.
type snapshot struct {
	now    time.Time
	member *v1alpha1.MemberCluster
	// hub is the hub's namespace.
	hub string
	// home: the member's namespace is there, is its own, and stays.
	home bool
	// joiner and agent are ServiceAccounts JoinAccount and AgentAccount.
	joiner, agent account
	// holder of the agent's Lease.
	leased bool
	holder string
	join   *v1alpha1.ClusterJoin // nil: not there
	// secret of the hub's namespace that is to have the join token; nil: not there.
	secret *corev1.Secret
}

// account is a ServiceAccount with its RoleBinding.
type account struct {
	// uid is empty where it is not there.
	uid types.UID
	// asked is the value of annotation AnnotationJoinToken of the member under which it
	// was made.
	asked string
	// join is the UID of the ClusterJoin that the agent's was made for.
	join types.UID
	// bound: there is a RoleBinding of its name. foreign: it says something else than
	// it is to say.
	bound, foreign bool
	binding        types.UID
}

func (a account) there() bool { return a.uid != "" }

// step is one write. The next is decided upon what is there after it, so that a hub
// which is killed between two of them, or another one in its place, goes on.
type step string

const (
	stay            step = ""
	hold            step = "hold the MemberCluster until all of its agent is revoked"
	release         step = "let go of the MemberCluster"
	makeJoiner      step = "make the account of join tokens"
	bindJoiner      step = "allow the account of join tokens to present them"
	issueToken      step = "issue a join token"
	unbindJoiner    step = "take from the account of join tokens what it may"
	removeJoiner    step = "remove the account of join tokens"
	removeSecret    step = "remove the Secret with the join token"
	removeJoin      step = "remove the ClusterJoin"
	answerJoin      step = "answer the ClusterJoin"
	makeAgent       step = "make the account of the agent"
	bindAgent       step = "allow the account of the agent to use its mailbox"
	makeLease       step = "make the Lease of the agent"
	issueCredential step = "issue the credential of the agent"
	unbindAgent     step = "take from the account of the agent what it may"
	removeAgent     step = "remove the account of the agent"
)

// decision is what is to be done next for one member, and what is told meanwhile.
type decision struct {
	step step
	// answer is the status of the ClusterJoin, where step is answerJoin.
	answer v1alpha1.ClusterJoinStatus
	// condition Joined; nil: there is none. It is told where there is no step, or where
	// that fails.
	condition *metav1.Condition
	// pending: an agent waits for acceptance.
	pending bool
	// after which to look again; 0 for never.
	after time.Duration
}

const (
	// contactPoll is how often it is looked whether an agent uses what was issued to
	// it. There is no watch: it would bring each renewal of every agent's Lease.
	contactPoll = 2 * time.Second
	// repairPoll is how often it is looked whether somebody has deleted what an agent
	// works with.
	repairPoll = 10 * time.Minute
	// mostText is how long a message is at most.
	mostText = 1024
)

func decide(s snapshot) decision {
	deleted := !s.member.DeletionTimestamp.IsZero()
	pull := s.member.Spec.Connection.Pull
	switch {
	case pull == nil, deleted && !has(s.member, v1alpha1.FinalizerMember):
		return s.leave()
	case pull.Revoked:
		return s.revoked()
	case s.saysRevoked():
		// That comes first: it is what revoked may be taken back by, and would be the
		// next time, too, before the hub has seen that it was set.
		return s.says(stay, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent, "a join token is being made")
	case deleted:
		// Its agent takes its leave, with the credential that it has.
		return decision{condition: s.stored()}
	case !has(s.member, finalizer):
		return s.says(hold, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent, "a join token is being made")
	case !s.home:
		return s.says(stay, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent,
			"a join token is made once the hub has made namespace %s%s for the member (see Ready)", v1alpha1.MemberNamespacePrefix, s.member.Name)
	}
	d := s.admit()
	if s.joined() && d.condition.Status != metav1.ConditionTrue {
		// What it has is good until something takes its place.
		d.condition = s.condition(metav1.ConditionTrue, v1alpha1.ReasonJoined, "the agent has a credential; beside it, %s", d.condition.Message)
	}
	return d
}

// leave revokes all that the agent has had, and then lets go of the member.
func (s snapshot) leave() decision {
	d := s.says(s.revoke(), metav1.ConditionFalse, v1alpha1.ReasonRevoking, "what the agent has had on the hub is being revoked, for it does not dial in any more")
	switch {
	case d.step != stay:
	case has(s.member, finalizer):
		d.step = release
	default:
		d.condition = nil
	}
	return d
}

func (s snapshot) revoked() decision {
	if next := s.revoke(); next != stay {
		return s.says(next, metav1.ConditionFalse, v1alpha1.ReasonRevoking, "all credentials of the agent, and join tokens, are being revoked: what was issued may still be good")
	}
	d := s.says(stay, metav1.ConditionFalse, v1alpha1.ReasonRevoked,
		"all credentials of the agent, and join tokens, were revoked (spec.connection.pull.revoked). Take it back, and there is a new join token")
	d.after = repairPoll
	return d
}

// revoke returns the next step until the agent has nothing left. What it may goes
// first: the API server asks for that at each request, while it may remember for
// some seconds that a token was good.
func (s snapshot) revoke() step {
	switch {
	case s.agent.bound:
		return unbindAgent
	case s.joiner.bound:
		return unbindJoiner
	case s.agent.there():
		return removeAgent
	case s.joiner.there():
		return removeJoiner
	case s.join != nil:
		return removeJoin
	case s.secret != nil && ours(s.secret):
		return removeSecret
	default:
		return stay
	}
}

// admit takes a member's agent from one step of joining to the next. A round goes
// from the account of a join token to its removal; whatever was made in another
// round is worth nothing.
func (s snapshot) admit() decision {
	wanted := s.member.Annotations[v1alpha1.AnnotationJoinToken]
	making := func(next step) decision {
		return s.says(next, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent, "what the agent is to join with is being made")
	}
	switch {
	case s.joiner.bound && (!s.joiner.there() || s.joiner.foreign):
		return making(unbindJoiner)
	case s.joiner.there() && s.joiner.asked != wanted:
		return s.endRound(making)
	case s.join != nil && s.join.Spec.Account != s.joiner.uid:
		return making(removeJoin)
	case s.secret != nil && ours(s.secret) && s.secret.Annotations[annotationAccount] != string(s.joiner.uid):
		return making(removeSecret)
	case s.agent.there() && s.agent.foreign:
		return making(unbindAgent)
	case s.agent.there() && !s.agent.bound:
		return making(bindAgent)
	case s.agent.there() && !s.leased:
		return making(makeLease)
	case s.joiner.there() && s.join != nil:
		return s.answer()
	case s.joiner.there():
		return s.offer(making)
	case s.agent.there() && s.agent.asked == wanted:
		return s.serve("")
	default:
		return making(makeJoiner)
	}
}

func (s snapshot) endRound(telling func(step) decision) decision {
	if s.joiner.bound {
		return telling(unbindJoiner)
	}
	return telling(removeJoiner)
}

// offer has a join token lie ready until an agent presents it.
func (s snapshot) offer(making func(step) decision) decision {
	switch {
	case !s.joiner.bound:
		return making(bindJoiner)
	case s.secret == nil:
		return making(issueToken)
	case !ours(s.secret):
		return s.says(stay, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent,
			"Secret %s/%s was not made by the hub, which needs that name for the join token: rename or delete it", s.hub, s.secret.Name)
	}
	expires, expired := s.expiry()
	if expired {
		return s.says(stay, metav1.ConditionFalse, v1alpha1.ReasonJoinTokenExpired, "the join token expired at %s, and no agent had presented it. %s", expires.Format(time.RFC3339), s.howAnew())
	}
	d := s.says(stay, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent,
		"a join token, good until %s, is in Secret %s/%s: put its key %s into Secret %s/%s of the cluster", expires.Format(time.RFC3339),
		s.hub, s.secret.Name, join.KubeconfigKey, s.member.Spec.AgentNamespace, join.JoinSecret)
	d.after = expires.Sub(s.now) + time.Second
	return d
}

// answer looks at a ClusterJoin of this round.
func (s snapshot) answer() decision {
	fingerprint, err := join.Fingerprint(s.join.Spec.PublicKey)
	expires, expired := s.expiry()
	issued := s.join.Status.Phase == v1alpha1.JoinIssued && s.agent.there() && s.agent.join == s.join.UID
	switch {
	case issued && s.joined():
		return s.endRound(func(next step) decision {
			return s.says(next, metav1.ConditionTrue, v1alpha1.ReasonJoined, "the agent has a credential of its own")
		})
	case issued:
		return s.serve(fmt.Sprintf(". It was issued to key %s, and the agent takes it with its join token, which is good until %s", fingerprint, expires.Format(time.RFC3339)))
	case expired:
		return s.says(stay, metav1.ConditionFalse, v1alpha1.ReasonJoinTokenExpired,
			"the join token expired at %s, before the key %s that it was presented with was accepted. %s", expires.Format(time.RFC3339), fingerprint, s.howAnew())
	}
	obstacle := ""
	if err != nil {
		obstacle = fmt.Sprintf("the public key in ClusterJoin %s/%s cannot be read: %v. %s", s.join.Namespace, s.join.Name, err, s.howAnew())
	} else {
		obstacle = s.obstacle(fingerprint)
	}
	if obstacle != "" {
		d := s.says(stay, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAcceptance, "%s", obstacle)
		d.pending = true
		if !expires.IsZero() {
			d.after = expires.Sub(s.now) + time.Second
		}
		obstacle = fleet.Cut(obstacle, mostText)
		d.answer = v1alpha1.ClusterJoinStatus{Phase: v1alpha1.JoinPending, Fingerprint: fingerprint, Message: obstacle}
		if at := s.join.Status; at.Phase != d.answer.Phase || at.Fingerprint != fingerprint || at.Message != obstacle || at.Credential != nil {
			d.step = answerJoin
		}
		return d
	}
	issuing := func(next step) decision {
		return s.says(next, metav1.ConditionFalse, v1alpha1.ReasonAwaitingContact, "key %s was accepted, and its credential is being issued", fingerprint)
	}
	switch {
	case s.agent.there() && s.agent.join != s.join.UID:
		// What was issued before is worth nothing from here on: of two agents that have
		// joined, the later one is in.
		return issuing(removeAgent)
	case !s.agent.there():
		return issuing(makeAgent)
	default:
		d := issuing(issueCredential)
		d.answer = v1alpha1.ClusterJoinStatus{
			Phase: v1alpha1.JoinIssued, Fingerprint: fingerprint,
			Message: "accepted; the credential is for the holder of that key alone",
		}
		return d
	}
}

// obstacle says why a key is not let in; empty: it is.
func (s snapshot) obstacle(fingerprint string) string {
	pull := s.member.Spec.Connection.Pull
	who := fmt.Sprintf("an agent of cluster %s presented the join token with key %s", s.join.Spec.ClusterUID, fingerprint)
	accept := fmt.Sprintf(`if the agent's log tells the same key, accept it: kubectl patch membercluster %s --type=merge --patch='{"spec":{"connection":{"pull":{"acceptedKey":"%s"}}}}'`,
		s.member.Name, fingerprint)
	known := cmp.Or(types.UID(s.member.Annotations[v1alpha1.AnnotationAcceptCluster]), s.member.Status.ClusterUID)
	switch {
	case pull.AcceptedKey == fingerprint:
		return ""
	case pull.AcceptedKey != "":
		return fmt.Sprintf("%s, and spec.connection.pull.acceptedKey is %s: %s", who, pull.AcceptedKey, accept)
	case !pull.AutoAccept:
		return who + ": " + accept
	case known != "" && known != s.join.Spec.ClusterUID:
		return fmt.Sprintf("%s, which is not let in by itself, for the member is cluster %s: was the join token meant for another? If not, %s", who, known, accept)
	default:
		return ""
	}
}

// serve waits for an agent that has a credential to use it.
func (s snapshot) serve(how string) decision {
	if s.joined() {
		d := s.says(stay, metav1.ConditionTrue, v1alpha1.ReasonJoined, "the agent has a credential of its own")
		d.after = repairPoll
		return d
	}
	d := s.says(stay, metav1.ConditionFalse, v1alpha1.ReasonAwaitingContact, "the agent has a credential and has not dialled in with it yet%s. If it never does: %s", how, s.howAnew())
	d.after = contactPoll
	return d
}

// joined tells that the agent has used the credential that was issued last: what
// was issued before is of an account with another UID.
func (s snapshot) joined() bool {
	return s.agent.there() && join.HolderAccount(s.holder) == s.agent.uid
}

// expiry of the join token; zero where the Secret that says it is gone.
func (s snapshot) expiry() (at time.Time, expired bool) {
	if s.secret == nil {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339, s.secret.Annotations[annotationExpires])
	return at, err != nil || !s.now.Before(at)
}

func (s snapshot) howAnew() string {
	return fmt.Sprintf("For a new join token: kubectl annotate --overwrite membercluster %s %s=$(date +%%s)", s.member.Name, v1alpha1.AnnotationJoinToken)
}

func (s snapshot) says(next step, status metav1.ConditionStatus, reason, format string, args ...any) decision {
	return decision{step: next, condition: s.condition(status, reason, format, args...)}
}

func (s snapshot) condition(status metav1.ConditionStatus, reason, format string, args ...any) *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.ConditionJoined, Status: status, Reason: reason, Message: fleet.Cut(fmt.Sprintf(format, args...), mostText),
		ObservedGeneration: s.member.Generation,
		LastTransitionTime: metav1.NewTime(s.now.UTC().Truncate(time.Second)),
	}
}
