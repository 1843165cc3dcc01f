package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/shard"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=memberlinks,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberlinks/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch

// AgentReplica stands for the replica of a member in pull mode.
const AgentReplica = "agent"

const (
	// maxConcurrentWrites of MemberLinks: when a replica dies, all of its members move.
	maxConcurrentWrites = 16
)

// Assigner writes the spec of every MemberLink. It runs in the elected replica, and
// assigns the whole fleet at once.
type Assigner struct {
	client.Client
	Replica *Replica
	Peers   *Peers
	Reports *report.Store
	Metrics *metrics.Shards

	requests  trigger.Source[ctrl.Request]
	conflicts trigger.ConflictTracker
	mu        sync.Mutex
	// avoidances are by member and replica: of those that it must leave, or has left.
	avoidances map[string]map[string]avoidance
	// evidence is by replica; backoffs are of those that reached none of their members for
	// long.
	evidence map[string]evidence
	backoffs map[string]replicaBackoff
}

// fleetRequest is the only request of the queue.
var fleetRequest = ctrl.Request{}

// avoidance keeps a member from a process of a replica. It holds after the move too: the
// member would come back in exchange for the next one that the replica does not reach.
type avoidance struct {
	process string
	until   time.Time
}

func (v avoidance) holds(process string, now time.Time) bool {
	return v.process == process && now.Before(v.until)
}

// MoveMember has a member assigned to another replica than from, if there is one that it does
// not avoid, and not back to that process for maxReplicaBackoff. Members come back one by one.
func (a *Assigner) MoveMember(member, from string) {
	peers, _ := a.Peers.List()
	next := avoidance{process: processOf(peers, from), until: time.Now().Add(wait.Jitter(maxReplicaBackoff, 0.5))}
	a.mu.Lock()
	if a.avoidances == nil {
		a.avoidances = map[string]map[string]avoidance{}
	}
	if a.avoidances[member] == nil {
		a.avoidances[member] = map[string]avoidance{}
	}
	a.avoidances[member][from] = next
	a.mu.Unlock()
	a.requests.Enqueue(fleetRequest)
}

// processOf returns the process of a replica; empty for one that is not among the peers.
func processOf(peers []Peer, replica string) string {
	for _, peer := range peers {
		if peer.Name == replica {
			return peer.Process
		}
	}
	return ""
}

// HasOtherReplica reports whether a member can leave a replica: another one is alive, not backed
// off, and not avoided.
func (a *Assigner) HasOtherReplica(member, but string) bool {
	peers, _ := a.Peers.List()
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, peer := range peers {
		avoided := a.avoidances[member][peer.Name].holds(peer.Process, now)
		if peer.Name != but && peer.State == PeerAlive && !avoided && now.After(a.backoffs[peer.Name].until) {
			return true
		}
	}
	return false
}

// Reconcile assigns all members.
func (a *Assigner) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	peers, known := a.Peers.List()
	if !known {
		return ctrl.Result{}, nil // the first read of the Leases enqueues the request
	}
	s, err := a.gather(ctx, peers)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(s)
	requeueAfter := trigger.Earliest(a.recordEvidence(ctx, d, peers, a.Replica.LeaseDuration, time.Now()), s.challengeWait)
	err = a.apply(ctx, d)
	a.Metrics.SetAssigned(d.members, d.replicas)
	return a.conflicts.Result(ctx, fleetRequest, ctrl.Result{RequeueAfter: requeueAfter}, err)
}

// snapshot is everything that assignments depend on.
type snapshot struct {
	challenge string
	// challengeWait is for how long members that do not move wait for the challenge.
	challengeWait time.Duration
	peers         []Peer
	members       []v1alpha1.MemberCluster
	// links by namespace.
	links map[string]*v1alpha1.MemberLink
	// readyNamespaces are the namespaces in which a MemberLink may be created.
	readyNamespaces map[string]bool
	// avoid has the replicas that a member avoids, sorted.
	avoid map[string][]string
	// backedOff replicas reached none of their members not long ago.
	backedOff map[string]bool
	// evidence is by replica, of the last decision.
	evidence map[string]evidence
}

func (a *Assigner) gather(ctx context.Context, peers []Peer) (snapshot, error) {
	s := snapshot{
		peers: peers, challenge: a.Replica.Challenge(), challengeWait: a.Reports.SyncWait(), links: map[string]*v1alpha1.MemberLink{}, readyNamespaces: map[string]bool{},
		avoid: map[string][]string{},
	}
	var members v1alpha1.MemberClusterList
	var links v1alpha1.MemberLinkList
	var namespaces corev1.NamespaceList
	for _, list := range []client.ObjectList{&members, &links, &namespaces} {
		if err := a.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return s, fmt.Errorf("listing %T to assign members: %w", list, err)
		}
	}
	s.members = members.Items
	for i := range links.Items {
		s.links[links.Items[i].Namespace] = &links.Items[i]
	}
	for i := range namespaces.Items {
		ns := &namespaces.Items[i]
		s.readyNamespaces[ns.Name] = ns.DeletionTimestamp.IsZero() && v1alpha1.MemberNamespacePrefix+ns.Labels[v1alpha1.LabelMember] == ns.Name
	}
	s.backedOff = a.activeBackoffs(peers, time.Now())
	a.mu.Lock()
	defer a.mu.Unlock()
	s.evidence = a.evidence
	for member, of := range a.avoidances {
		maps.DeleteFunc(of, func(replica string, avoids avoidance) bool {
			return !avoids.holds(processOf(peers, replica), time.Now())
		})
		if len(of) == 0 || s.links[v1alpha1.MemberNamespacePrefix+member] == nil {
			delete(a.avoidances, member)
			continue
		}
		s.avoid[member] = slices.Sorted(maps.Keys(of))
	}
	return s, nil
}

// decision is what to write and to count.
type decision struct {
	// links to write; those without a resourceVersion are new.
	links []linkChange
	// members by replica, replicas by state.
	members, replicas map[string]int
	// evidence is by live replica.
	evidence map[string]evidence
	// kept are members that a suspect keeps, though they were to leave it, with the suspect.
	kept map[string]string
	// suspects seem to reach none of their members: for how many durations of a Lease they
	// may go on.
	suspects map[string]int
}

// linkChange is the change of one MemberLink.
type linkChange struct {
	link *v1alpha1.MemberLink
	// fromReplica is the former replica; empty for none.
	fromReplica string
}

func decide(s snapshot) decision {
	d := decision{members: map[string]int{}, replicas: map[string]int{}, evidence: map[string]evidence{}, kept: map[string]string{}}
	unknown := map[string]bool{}
	var alive []string
	for _, peer := range s.peers {
		switch peer.State {
		case PeerAlive:
			alive = append(alive, peer.Name)
			d.members[peer.Name] = 0
			d.replicas[metrics.ReplicaAlive]++
		case PeerUnknown:
			unknown[peer.Name] = true
			d.replicas[metrics.ReplicaUnknown]++
		case PeerDead:
			d.replicas[metrics.ReplicaDead]++
		}
	}
	reachOf := computeReach(s)
	for name, r := range reachOf {
		d.evidence[name] = r.evidence
	}
	alive, d.suspects = judgeReplicas(alive, reachOf, s.backedOff)
	var candidates []shard.Member
	specs := map[string]v1alpha1.MemberLinkSpec{}
	for i := range s.members {
		m := &s.members[i]
		namespace := v1alpha1.MemberNamespacePrefix + m.Name
		link := s.links[namespace]
		// A link that is deleted with its namespace is created in the next one.
		if link == nil && !s.readyNamespaces[namespace] || link != nil && !link.DeletionTimestamp.IsZero() || hasLeft(m) {
			continue
		}
		spec := v1alpha1.MemberLinkSpec{Challenge: s.challenge, Mode: v1alpha1.LinkPush}
		if link != nil {
			spec.Replica, spec.Leaving = link.Spec.Replica, link.Spec.Leaving
		}
		switch {
		case m.Spec.Connection.Pull != nil:
			spec.Mode, spec.Replica, spec.Connection = v1alpha1.LinkPull, "", m.ConnectionID()
		case unknown[spec.Replica] && !slices.Contains(s.avoid[m.Name], spec.Replica):
		default:
			candidate := shard.Member{Name: m.Name, Replica: spec.Replica, Avoid: s.avoid[m.Name]}
			if i := slices.Index(candidate.Avoid, spec.Replica); i >= 0 && d.suspects[spec.Replica] > 0 {
				// It would be exchanged for one that the suspect does not reach either.
				candidate.Avoid = slices.Delete(slices.Clone(candidate.Avoid), i, i+1)
				d.kept[m.Name] = spec.Replica
			}
			candidates = append(candidates, candidate)
		}
		specs[m.Name] = spec
	}
	assigned := shard.Assign(candidates, alive)
	for i := range s.members {
		name := s.members[i].Name
		spec, ok := specs[name]
		if !ok {
			continue
		}
		if to := assigned[name]; to != "" {
			spec.Replica = to
		}
		if spec.Mode == v1alpha1.LinkPull {
			d.members[AgentReplica]++
		} else {
			d.members[spec.Replica]++
		}
		link := s.links[v1alpha1.MemberNamespacePrefix+name]
		if link != nil && s.challengeWait > 0 {
			spec.Challenge = keepChallenge(link.Spec, spec)
		}
		if c := changeLink(link, name, spec); c.link != nil {
			d.links = append(d.links, c)
		}
	}
	return d
}

// keepChallenge returns the former challenge of a member where nothing else of its MemberLink changes. A
// new one has its report compared copy by copy: after an election, those of the whole fleet would delay the
// members that move, and the reading of the reports, before which no confirmation is of use.
func keepChallenge(former, next v1alpha1.MemberLinkSpec) string {
	challenge := next.Challenge
	if next.Challenge = former.Challenge; next == former {
		return former.Challenge
	}
	return challenge
}

// hasLeft reports whether the planner has finished the removal of a member.
func hasLeft(m *v1alpha1.MemberCluster) bool {
	return !m.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(m, v1alpha1.FinalizerMember)
}

// changeLink returns the change that gives a MemberLink this spec; without a link for no
// change.
func changeLink(link *v1alpha1.MemberLink, member string, spec v1alpha1.MemberLinkSpec) linkChange {
	if link == nil {
		return linkChange{link: &v1alpha1.MemberLink{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, Spec: spec,
		}}
	}
	if link.Spec == spec {
		return linkChange{}
	}
	c := linkChange{link: link.DeepCopy()}
	if link.Spec.Replica != spec.Replica {
		c.fromReplica = link.Spec.Replica
	}
	c.link.Spec = spec
	return c
}

// apply writes the changes. A failed one does not block the others.
func (a *Assigner) apply(ctx context.Context, d decision) error {
	failed := make([]error, len(d.links))
	workqueue.ParallelizeUntil(ctx, maxConcurrentWrites, len(d.links), func(i int) {
		failed[i] = a.writeLink(ctx, d.links[i])
	})
	// A conflict requeues at once, which is too soon for all other errors.
	var others []error
	for _, err := range failed {
		if err != nil && !trigger.IsConflict(err) {
			others = append(others, err)
		}
	}
	if len(others) > 0 {
		return errors.Join(others...)
	}
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// writeLink is guarded by the resourceVersion that was decided on.
func (a *Assigner) writeLink(ctx context.Context, c linkChange) error {
	if c.link.ResourceVersion == "" {
		if err := a.Create(ctx, c.link); err != nil {
			return fmt.Errorf("creating MemberLink %s/%s: %w", c.link.Namespace, c.link.Name, err)
		}
		return nil
	}
	if err := a.Update(ctx, c.link); err != nil {
		return fmt.Errorf("assigning the member of namespace %s: %w", c.link.Namespace, err)
	}
	if c.fromReplica != "" {
		a.Metrics.CountMove()
		member, _ := report.MemberForNamespace(c.link.Namespace)
		log.FromContext(ctx).Info("Moved member to another replica", "member", member, "from", c.fromReplica, "to", c.link.Spec.Replica)
	}
	return nil
}
