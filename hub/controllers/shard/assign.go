package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/poke"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/shard"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=memberlinks,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberlinks/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch

// Agent is what stands for the replica where an agent dials in.
const Agent = "agent"

const (
	// soon is when to go on that somebody else was faster than.
	soon = 50 * time.Millisecond
	// writers of MemberLinks at a time: of a replica that dies, all members move.
	writers = 16
)

// Assigner writes the spec of every MemberLink. It runs in the elected replica, and
// looks at the whole fleet at once.
type Assigner struct {
	client.Client
	Replica *Replica
	Peers   *Peers
	Metrics *metrics.Shards

	again poke.Source[ctrl.Request]
	mu    sync.Mutex
	// avoid is, by member, the replica that is to lose it.
	avoid map[string]string
	// blind is since when replicas have been so, shunned are those that were for long.
	blind   map[string]time.Time
	shunned map[string]shun
}

// A replica that was blind for long gets no member for shunFirst, and for twice as long each
// time that it turns out to be blind still, until that is shunLast.
const (
	shunFirst = 5 * time.Minute
	shunLast  = time.Hour
)

// shun of a replica, as long as it is the same process.
type shun struct {
	process string
	until   time.Time
	wait    time.Duration
}

// everything is the one request there is.
var everything = ctrl.Request{}

// Move has a member assigned to another replica than this one, if it still is
// assigned to it, and if there is another.
func (a *Assigner) Move(member, from string) {
	a.mu.Lock()
	if a.avoid == nil {
		a.avoid = map[string]string{}
	}
	a.avoid[member] = from
	a.mu.Unlock()
	a.again.Poke(everything)
}

// Others tells whether any replica but one is alive.
func (a *Assigner) Others(but string) bool {
	peers, _ := a.Peers.All()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, peer := range peers {
		if peer.Name != but && peer.State == PeerAlive && time.Now().After(a.shunned[peer.Name].until) {
			return true
		}
	}
	return false
}

// Reconcile assigns all members.
func (a *Assigner) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	peers, known := a.Peers.All()
	if !known {
		return ctrl.Result{}, nil // the first look at the Leases brings the request back
	}
	s, err := a.gather(ctx, peers)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(s)
	wait := a.shun(ctx, d.blind, peers, a.Replica.LeaseDuration, time.Now())
	err = a.apply(ctx, d)
	a.Metrics.Assigned(d.members, d.replicas)
	switch {
	case err == nil:
		return ctrl.Result{RequeueAfter: wait}, nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		log.FromContext(ctx).V(1).Info("The cache is behind", "error", err.Error())
		return ctrl.Result{RequeueAfter: soon}, nil
	}
	return ctrl.Result{}, err
}

// snapshot is what assignments are decided upon.
type snapshot struct {
	challenge string
	peers     []Peer
	members   []v1alpha1.MemberCluster
	// links by namespace.
	links map[string]*v1alpha1.MemberLink
	// ready are the namespaces in which a MemberLink may be made.
	ready map[string]bool
	avoid map[string]string
	// shunned replicas were blind not long ago.
	shunned map[string]bool
}

func (a *Assigner) gather(ctx context.Context, peers []Peer) (snapshot, error) {
	s := snapshot{
		peers: peers, challenge: a.Replica.Challenge(), links: map[string]*v1alpha1.MemberLink{}, ready: map[string]bool{},
		avoid: map[string]string{},
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
		s.ready[ns.Name] = ns.DeletionTimestamp.IsZero() && v1alpha1.MemberNamespacePrefix+ns.Labels[v1alpha1.LabelMember] == ns.Name
	}
	s.shunned = a.shunnedOf(peers, time.Now())
	a.mu.Lock()
	defer a.mu.Unlock()
	for member, from := range a.avoid {
		link := s.links[v1alpha1.MemberNamespacePrefix+member]
		if link == nil || link.Spec.Replica != from {
			delete(a.avoid, member) // it was moved
			continue
		}
		s.avoid[member] = from
	}
	return s, nil
}

// shunnedOf the replicas are those that were found to be blind and are to get no member
// yet. What was of one that ended, or was better for long enough, is forgotten.
func (a *Assigner) shunnedOf(peers []Peer, now time.Time) map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	shunned, kept := map[string]bool{}, map[string]shun{}
	for _, peer := range peers {
		was, is := a.shunned[peer.Name]
		if !is || peer.State != PeerAlive || peer.Process != was.process || now.After(was.until.Add(was.wait)) {
			continue
		}
		kept[peer.Name] = was
		if now.Before(was.until) {
			shunned[peer.Name] = true
		}
	}
	a.shunned = kept
	return shunned
}

// shun has replicas that have been blind for as long as a silent one is waited for get
// no member for a while: one that was paused, or had no time, comes back sooner. It
// tells when to look again.
func (a *Assigner) shun(ctx context.Context, blind []string, peers []Peer, patience time.Duration, now time.Time) (next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.shunned == nil {
		a.shunned = map[string]shun{}
	}
	since := map[string]time.Time{}
	for _, peer := range peers {
		if !slices.Contains(blind, peer.Name) {
			continue
		}
		began, known := a.blind[peer.Name]
		if !known {
			began = now
		}
		if left := began.Add(patience).Sub(now); left > 0 {
			since[peer.Name] = began
			next = sooner(next, left)
			continue
		}
		wait := min(max(shunFirst, 2*a.shunned[peer.Name].wait), shunLast)
		a.shunned[peer.Name] = shun{process: peer.Process, until: now.Add(wait), wait: wait}
		next = sooner(next, soon)
		log.FromContext(ctx).Info("A replica reaches none of its members, and others reach theirs: it gets none for a while", "replica", peer.Name, "for", wait.String())
	}
	a.blind = since
	for _, s := range a.shunned {
		next = sooner(next, s.until.Sub(now))
	}
	return next
}

// sooner of two waits, of which those that are not greater than 0 are none.
func sooner(a, b time.Duration) time.Duration {
	if b <= 0 || a > 0 && a < b {
		return a
	}
	return b
}

// decision is what is to be written, and what is to be counted.
type decision struct {
	// links that are to be written: those without a resourceVersion are new.
	links []change
	// members by replica, replicas by state.
	members, replicas map[string]int
	// blind are replicas that seem to be so now.
	blind []string
}

// change of one MemberLink.
type change struct {
	link *v1alpha1.MemberLink
	// from another replica it moves; empty: it had none.
	from string
}

func decide(s snapshot) decision {
	d := decision{members: map[string]int{}, replicas: map[string]int{}}
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
	alive, d.blind = sighted(alive, s)
	var candidates []shard.Member
	specs := map[string]v1alpha1.MemberLinkSpec{}
	for i := range s.members {
		m := &s.members[i]
		namespace := v1alpha1.MemberNamespacePrefix + m.Name
		link := s.links[namespace]
		// What is being deleted with its namespace is made anew in the next one.
		if link == nil && !s.ready[namespace] || link != nil && !link.DeletionTimestamp.IsZero() || gone(m) {
			continue
		}
		spec := v1alpha1.MemberLinkSpec{Challenge: s.challenge, Mode: v1alpha1.LinkPush}
		if link != nil {
			spec.Replica, spec.Leaving = link.Spec.Replica, link.Spec.Leaving
		}
		switch {
		case m.Spec.Connection.Pull != nil:
			spec.Mode, spec.Replica = v1alpha1.LinkPull, ""
		case unknown[spec.Replica] && s.avoid[m.Name] != spec.Replica:
		default:
			candidates = append(candidates, shard.Member{Name: m.Name, Replica: spec.Replica, Avoid: s.avoid[m.Name]})
		}
		specs[m.Name] = spec
	}
	assigned := shard.Assign(candidates, alive)
	for i := range s.members {
		name := s.members[i].Name
		spec, is := specs[name]
		if !is {
			continue
		}
		if to := assigned[name]; to != "" {
			spec.Replica = to
		}
		if spec.Mode == v1alpha1.LinkPull {
			d.members[Agent]++
		} else {
			d.members[spec.Replica]++
		}
		if c := next(s.links[v1alpha1.MemberNamespacePrefix+name], name, spec); c.link != nil {
			d.links = append(d.links, c)
		}
	}
	return d
}

// sighted are the replicas that members are assigned to, of those that are alive, and
// blind those of them that seem to reach none of their members, of which they have
// more than one, while others reach theirs: to move members from them one by one would
// bring them others in exchange. They may also have members that nobody reaches, and
// have them moved for nothing. Where nobody reaches any, it is not the replicas.
func sighted(alive []string, s snapshot) (to, blind []string) {
	reached, missed, pending := map[string]int{}, map[string]int{}, map[string]int{}
	for _, link := range s.links {
		spec, status := &link.Spec, &link.Status
		switch {
		case spec.Mode != v1alpha1.LinkPush:
		case status.Carrier != spec.Replica || !status.Known:
			pending[spec.Replica]++
		case status.Reachable:
			reached[spec.Replica]++
		case status.Reason == v1alpha1.ReasonUnreachable: // else it is the credential
			missed[spec.Replica]++
		}
	}
	seen := false
	for _, replica := range alive {
		seen = seen || !s.shunned[replica] && reached[replica] > 0
	}
	for _, replica := range alive {
		switch {
		case !seen:
			to = append(to, replica)
		case s.shunned[replica]:
		case missed[replica] > 1 && reached[replica]+pending[replica] == 0:
			blind = append(blind, replica)
			fallthrough
		default:
			to = append(to, replica)
		}
	}
	return to, blind
}

// gone: the hub has taken leave of a member.
func gone(m *v1alpha1.MemberCluster) bool {
	return !m.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(m, v1alpha1.FinalizerMember)
}

// next is the change to a MemberLink that has a member be carried for so.
func next(link *v1alpha1.MemberLink, member string, spec v1alpha1.MemberLinkSpec) change {
	if link == nil {
		return change{link: &v1alpha1.MemberLink{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, Spec: spec,
		}}
	}
	if link.Spec == spec {
		return change{}
	}
	c := change{link: link.DeepCopy()}
	if link.Spec.Replica != spec.Replica {
		c.from = link.Spec.Replica
	}
	c.link.Spec = spec
	return c
}

// apply writes what was decided. What fails holds up none of the others.
func (a *Assigner) apply(ctx context.Context, d decision) error {
	failed := make([]error, len(d.links))
	workqueue.ParallelizeUntil(ctx, writers, len(d.links), func(i int) {
		failed[i] = a.write(ctx, d.links[i])
	})
	// A conflict brings the request back at once, which is too soon for all else.
	var worse []error
	for _, err := range failed {
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			worse = append(worse, err)
		}
	}
	if len(worse) > 0 {
		return errors.Join(worse...)
	}
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// write is guarded by the state that was decided upon.
func (a *Assigner) write(ctx context.Context, c change) error {
	if c.link.ResourceVersion == "" {
		if err := a.Create(ctx, c.link); err != nil {
			return fmt.Errorf("creating MemberLink %s/%s: %w", c.link.Namespace, c.link.Name, err)
		}
		return nil
	}
	if err := a.Update(ctx, c.link); err != nil {
		return fmt.Errorf("assigning the member of namespace %s: %w", c.link.Namespace, err)
	}
	if c.from != "" {
		a.Metrics.Moved()
		log.FromContext(ctx).Info("Moved", "namespace", c.link.Namespace, "from", c.from, "to", c.link.Spec.Replica)
	}
	return nil
}
