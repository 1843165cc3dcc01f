//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/hub"
)

const (
	namespace = "vmdi-farm"
	patience  = 5 * time.Minute
	tick      = 250 * time.Millisecond

	imagesEach    = 5
	downloadTakes = "2s"
	// Budgets of the fleet's policy, first and when it is raised.
	firstBudget, raisedBudget = 2, 3
	firstEdge, raisedEdge     = 1, 2
	labBudget                 = 3
	// cutAfter is how many images edge has when it is cut off, backAfter how many
	// when it comes back.
	cutAfter, backAfter = 1, 3
)

// story is what the demo does, and what it expects to come of it.
type story struct {
	*fleet
	source *httptest.Server
	screen *screen
	start  time.Time

	// members as the hub tells, images as they are in each.
	seen   []v1alpha1.MemberCluster
	images map[string][]v1alpha1.VMDiskImage
	// What is left to do, each thread in its order.
	threads [][]act
	workspace
	rollout
	prune
	replicas
	// aloneReady is how many images edge had when it was cut off and when it came
	// back.
	aloneReady [2]int
}

// act is done once when its time has come.
type act struct {
	due func() bool
	do  func(context.Context) error
}

func newStory(f *fleet) *story {
	s := &story{fleet: f, screen: newScreen(), images: map[string][]v1alpha1.VMDiskImage{}}
	s.unhealthy = map[string]bool{}
	// The source answers only whether it has an image; no bytes are served.
	s.source = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/missing/") {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	s.threads = [][]act{s.ofWorkspace(), s.ofRollout(), s.ofPreview(), s.ofPrune(), s.ofReplicas(), {
		{func() bool { return s.ready(edge) >= cutAfter }, s.cut},
		{func() bool { return s.condition(edge, v1alpha1.ConditionReachable) == metav1.ConditionFalse }, s.raise},
		{func() bool {
			return s.ready(edge) >= backAfter && s.acknowledged(bergen, raisedBudget) && s.acknowledged(lab, labBudget) && s.deferred
		}, s.mend},
		{func() bool { return s.acknowledged(edge, raisedEdge) }, func(context.Context) error {
			s.screen.say("edge is back, and has acknowledged the policy that it missed")
			return nil
		}},
	}}
	return s
}

func (s *story) close() { s.source.Close() }

// image of a member: all have the same ones, two of them in trouble.
func (s *story) image(of string, n int) *v1alpha1.VMDiskImage {
	name, path := fmt.Sprintf("lab-%d", 150+n), "/ok/"+downloadTakes+"/disk.qcow2"
	switch {
	case of == bergen && n == 2:
		name, path = "breaks-off-once", "/flaky/1/"+downloadTakes+"/disk.qcow2"
	case of == lab && n == 3:
		name, path = "no-such-image", "/missing/disk.qcow2"
	}
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: s.source.URL + path,
			DiskSize: resource.MustParse("24Gi"), StorageClass: "sim-csi",
		},
	}
}

// tell runs the story until every image has ended and the hub knows it.
func (s *story) tell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.start = time.Now()
	for _, name := range names {
		c := s.members[name].Client()
		if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
			return err
		}
		for n := range imagesEach {
			img := s.image(name, n+1)
			if err := c.Create(ctx, img); err != nil {
				return fmt.Errorf("creating VMDiskImage %s in %s: %w", img.Name, name, err)
			}
		}
	}
	s.screen.say("%d VMDiskImages applied in each cluster", imagesEach)
	if err := s.openWorkspace(ctx); err != nil {
		return err
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		if err := s.look(ctx); err != nil {
			return err
		}
		s.show()
		left, err := s.act(ctx)
		if err != nil {
			return err
		}
		if left == 0 && s.done() {
			s.show() // with what was said last
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not everything has ended after %s, %d of the story's turns are left: %w", patience, left, ctx.Err())
		case <-ticker.C:
		}
	}
}

func (s *story) show() {
	s.screen.show(time.Since(s.start), s.seen, s.machines, &s.fleetImage)
}

// act does what is due, and returns how many acts are left.
func (s *story) act(ctx context.Context) (left int, err error) {
	for i := range s.threads {
		for len(s.threads[i]) > 0 && s.threads[i][0].due() {
			if err := s.threads[i][0].do(ctx); err != nil {
				return left, err
			}
			s.threads[i] = s.threads[i][1:]
		}
		left += len(s.threads[i])
	}
	return left, nil
}

// look reads the fleet as the hub tells it, and the images where they are.
func (s *story) look(ctx context.Context) error {
	if err := s.alive(); err != nil {
		return err
	}
	var members v1alpha1.MemberClusterList
	if err := s.client.List(ctx, &members); err != nil {
		return fmt.Errorf("listing MemberClusters: %w", err)
	}
	s.seen = members.Items
	for _, name := range names {
		var images v1alpha1.VMDiskImageList
		if err := s.fleet.members[name].Client().List(ctx, &images, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("listing VMDiskImages of %s: %w", name, err)
		}
		s.images[name] = images.Items
	}
	if err := s.lookAtRollout(ctx); err != nil {
		return err
	}
	if err := s.lookAtPrune(ctx); err != nil {
		return err
	}
	s.lookAtReplicas()
	return s.lookAtWorkspace(ctx)
}

func (s *story) cut(context.Context) error {
	s.aloneReady[0] = s.ready(edge)
	s.uplink.Cut()
	s.screen.say("edge is cut off from the hub")
	return nil
}

func (s *story) raise(ctx context.Context) error {
	cm := &corev1.ConfigMap{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: hub.PolicyNamespace, Name: hub.PolicyName}, cm); err != nil {
		return fmt.Errorf("reading the policy: %w", err)
	}
	cm.Data = policy(raisedBudget, raisedEdge)
	if err := s.client.Update(ctx, cm); err != nil {
		return fmt.Errorf("raising the policy: %w", err)
	}
	s.screen.say("policy ConfigMap of the hub changed: concurrency %d -> %d, where edge=true %d -> %d", firstBudget, raisedBudget, firstEdge, raisedEdge)
	return nil
}

func (s *story) mend(ctx context.Context) error {
	s.aloneReady[1] = s.ready(edge)
	s.screen.say("edge synced %d images meanwhile; it can be reached again", s.aloneReady[1]-s.aloneReady[0])
	return s.uplink.Mend(ctx)
}

func (s *story) member(name string) *v1alpha1.MemberCluster {
	for i := range s.seen {
		if s.seen[i].Name == name {
			return &s.seen[i]
		}
	}
	return &v1alpha1.MemberCluster{}
}

func (s *story) condition(name, condition string) metav1.ConditionStatus {
	if c := meta.FindStatusCondition(s.member(name).Status.Conditions, condition); c != nil {
		return c.Status
	}
	return metav1.ConditionUnknown
}

// acknowledged tells whether a member's ledger has a budget by the newest plan.
func (s *story) acknowledged(name string, budget int32) bool {
	st := s.member(name).Status
	return s.condition(name, v1alpha1.ConditionPolicyAcknowledged) == metav1.ConditionTrue && st.Budget != nil && *st.Budget == budget
}

func (s *story) count(name string, phase v1alpha1.Phase) (n int) {
	for i := range s.images[name] {
		if s.images[name][i].Status.Phase == phase {
			n++
		}
	}
	return n
}

func (s *story) ready(name string) int { return s.count(name, v1alpha1.PhaseSucceeded) }

// done tells whether all images have ended, and whether the hub says the same.
func (s *story) done() bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		ready, failed := s.ready(name), s.count(name, v1alpha1.PhaseFailed)
		told := s.member(name).Status.Images
		return ready+failed < len(s.images[name]) || told == nil || int(told.Ready) != ready || int(told.Failed) != failed
	})
}

// summarize says what came of it, by the observers' own account, and fails where
// a promise was broken.
func (s *story) summarize(ctx context.Context) error {
	var wrong []string
	check := func(holds bool, format string, args ...any) {
		mark := "yes"
		if !holds {
			mark = "NO "
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
		fmt.Printf("  %s  %s\n", mark, fmt.Sprintf(format, args...))
	}
	fmt.Printf("\nAfter %.0f s, by observers that read no status of the agents' or the hub's:\n", time.Since(s.start).Seconds())
	for _, name := range names {
		h, err := s.observers[name].History(ctx)
		if err != nil {
			return err
		}
		check(len(h.OverBudget()) == 0 && h.MostRunning() > 0, "%s: never more downloads than its budget (%d at the most)", name, h.MostRunning())
		check(len(h.Reused()) == 0, "%s: no DataVolume was created twice", name)
		for _, img := range s.images[name] {
			switch img.Name {
			case "breaks-off-once":
				check(img.Status.Phase == v1alpha1.PhaseSucceeded && h.Attempts(img.UID) == 2, "%s: %s healed with its second attempt", name, img.Name)
			case "no-such-image":
				check(img.Status.Phase == v1alpha1.PhaseFailed && h.Attempts(img.UID) == 0, "%s: %s failed as %s and cost no download", name, img.Name, img.Status.Reason)
			}
		}
	}
	check(s.aloneReady[1] > s.aloneReady[0], "edge went on without the hub")
	if err := s.judgeRollout(ctx, check); err != nil {
		return err
	}
	s.judgeReplicas(check)
	check(s.done(), "the hub's counts are those of the clusters")
	fmt.Println("And by KubeVirt's own status, the claims that are there, and the hub's read API:")
	if err := s.judgeWorkspace(ctx, check); err != nil {
		return err
	}
	if err := s.judgePrune(ctx, check); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d of the checks above failed: %w", len(wrong), errors.New(strings.Join(wrong, "; ")))
	}
	return nil
}
