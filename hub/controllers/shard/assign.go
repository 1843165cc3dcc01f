package shard

import (
	"context"
	"errors"
	"fmt"
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
	for _, peer := range withSelf(peers, a.Replica.Name(), a.Replica.Carries()) {
		if peer.Name != but && peer.State == PeerAlive {
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
	err = a.apply(ctx, d)
	a.Metrics.Assigned(d.members, d.replicas)
	switch {
	case err == nil:
		return ctrl.Result{}, nil
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
}

func (a *Assigner) gather(ctx context.Context, peers []Peer) (snapshot, error) {
	s := snapshot{
		peers:     withSelf(peers, a.Replica.Name(), a.Replica.Carries()),
		challenge: a.Replica.Challenge(), links: map[string]*v1alpha1.MemberLink{}, ready: map[string]bool{}, avoid: map[string]string{},
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

// withSelf are the replicas, of which this one knows itself best whether it lives.
func withSelf(peers []Peer, name string, carries bool) (all []Peer) {
	self := Peer{Name: name, State: PeerUnknown}
	if carries {
		self.State = PeerAlive
	}
	for _, peer := range peers {
		if peer.Name != name {
			all = append(all, peer)
		}
	}
	return append(all, self)
}

// decision is what is to be written, and what is to be counted.
type decision struct {
	// links that are to be written: those without a resourceVersion are new.
	links []change
	// members by replica, replicas by state.
	members, replicas map[string]int
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
		case unknown[spec.Replica]:
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
